"""The strategy of a worker process of a test: several CPU devices per worker stand in for several GPUs."""

import faulthandler
import warnings

import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy

faulthandler.enable()


def worker_strategy(replicas_per_worker=1, **options):
    """Returns this worker's strategy; TensorFlow by itself takes one CPU device whatever there are."""
    tf.get_logger().setLevel("ERROR")
    tf.config.threading.set_inter_op_parallelism_threads(16)
    if replicas_per_worker > 1:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * replicas_per_worker,
        )
        collective_all_reduce_strategy.CollectiveAllReduceExtended._initialize_local_devices = (
            lambda self, resolver, device: (
                tuple(f"{device}/device:CPU:{index}" for index in range(replicas_per_worker)),
                "CPU",
            )
        )
    from mirrored_keras.workers import multi_worker_strategy

    warnings.simplefilter("error")
    for line in ("tensorflow", "keras", "google", "flatbuffers", "astunparse"):
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=line + ".*")
    known_ones = ("__array__ implementation doesn't accept a copy", "Your input ran out of data", "The generator ended")
    for known in known_ones:
        warnings.filterwarnings("ignore", message=known)
    return multi_worker_strategy(**options)
