"""Logical CPU devices: several replicas on a machine that has one processor and no accelerator."""

import functools
import os

# Before the first import of TensorFlow: its start-up lines and its choice of backend.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import tensorflow as tf


def make_cpu_devices(count):
    """Splits the CPU into `count` devices; must run before TensorFlow starts.

    A blocking collective holds one thread per replica and step in flight, so the pool of threads
    has four per device: with fewer, replicas wait for each other for ever.
    """
    tf.get_logger().setLevel("ERROR")  # many small models look like needless retracing
    tf.config.threading.set_inter_op_parallelism_threads(4 * count)
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * count,
    )


def cpu_names(count):
    """Returns the names of the first `count` logical CPU devices."""
    return [f"CPU:{index}" for index in range(count)]


@functools.cache
def strategy_for(replicas):
    """Returns the strategy over the first `replicas` CPU devices, or `None` for no strategy.

    The default collectives of TensorFlow allow one group of devices per process and abort on the
    second; reducing to one device has no such limit. The defaults have `tests/subprocess/`.
    """
    if replicas is None:
        return None
    return tf.distribute.MirroredStrategy(cpu_names(replicas), cross_device_ops=tf.distribute.ReductionToOneDevice())
