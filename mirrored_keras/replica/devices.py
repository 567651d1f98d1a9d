"""Which devices train: one call from a number, a list or "auto" to a strategy."""

import os
from collections.abc import Sequence

import tensorflow as tf

from mirrored_keras.errors import SetupError, message

Devices = int | str | Sequence[str | int] | None


def mirrored_strategy(
    devices: Devices = None, *, cross_device_ops: tf.distribute.CrossDeviceOps | None = None
) -> tf.distribute.MirroredStrategy:
    """Makes a `tf.distribute.MirroredStrategy` over the devices that are meant.

    Args:
        devices: `None` or "auto": every GPU, or one CPU replica where there is no GPU. A number R: the
            first R GPUs, or, on a machine without any, R CPU replicas, which are made here if
            TensorFlow has not started yet. A list: device names like "GPU:1" and "CPU:0", or GPU numbers.
        cross_device_ops: The engine that sums over replicas; `None` takes TensorFlow's default. The
            default works with one group of devices per process;
            `tf.distribute.ReductionToOneDevice()` has no such limit.

    Returns:
        The strategy. Models are made inside its `scope()`.

    Raises:
        SetupError: There are not as many devices, a name is unknown, or TensorFlow has started already
            with fewer CPU devices.

    Example:
        >>> from mirrored_keras import mirrored_strategy
        >>> strategy = mirrored_strategy(1)
        >>> strategy.num_replicas_in_sync
        1
    """
    if devices is None or devices == "auto":
        gpus = tf.config.get_visible_devices("GPU")
        names = [f"GPU:{i}" for i in range(len(gpus))] or ["CPU:0"]
    elif isinstance(devices, int) and not isinstance(devices, bool):
        names = _first(devices)
    elif isinstance(devices, (list, tuple)) and devices:
        names = _named(devices)
    else:
        raise SetupError(_message(devices, '`devices` is a number of replicas, a list of devices, "auto" or None.'))
    return tf.distribute.MirroredStrategy(names, cross_device_ops=cross_device_ops)


def _first(count):
    if count < 1:
        raise SetupError(_message(count, "`devices` must be a positive number of replicas."))
    gpus = len(tf.config.get_visible_devices("GPU"))
    if not gpus:
        _have_cpu_devices(count)
        return [f"CPU:{i}" for i in range(count)]
    if count > gpus:
        raise SetupError(_message(count, f"There are only {gpus} GPUs; every replica needs one of its own."))
    return [f"GPU:{i}" for i in range(count)]


def _have_cpu_devices(count):
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu)
    if configured is not None and len(configured) >= count:
        return
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        # blocking collectives hold a thread each, so that a pool of one thread per core can starve
        threads = tf.config.threading.get_inter_op_parallelism_threads()
        tf.config.threading.set_inter_op_parallelism_threads(max(threads, 4 * count))
    except RuntimeError as error:
        present = len(tf.config.list_logical_devices("CPU"))
        if present >= count:
            return
        raise SetupError(
            message(
                f"{count} CPU replicas need {count} logical CPU devices, and TensorFlow has started with {present}; "
                "they can only be made before its first operation.",
                f"devices={count}",
                f"strategy = mirrored_strategy({count})   # before any tensor, layer or dataset is made",
            )
        ) from error


def _named(devices):
    names = [f"GPU:{device}" if isinstance(device, int) else str(device) for device in devices]
    known = tf.config.list_logical_devices()
    by_name = {f"{d.device_type}:{d.name.rsplit(':', 1)[1]}" for d in known}
    short = [name.upper().removeprefix("/").removeprefix("DEVICE:") for name in names]
    missing = [name for name, key in zip(names, short, strict=True) if key not in by_name and "/JOB:" not in key]
    if missing or len(set(short)) != len(short):
        rule = f"Every device must exist and be named once; unknown: {missing}, there are: {sorted(by_name)}."
        raise SetupError(_message(list(devices), rule))
    return names


def _message(devices, rule):
    return message(
        rule,
        f"devices={devices!r}",
        'mirrored_strategy(2), mirrored_strategy("auto") or mirrored_strategy(["GPU:0", "GPU:1"])',
    )


def check_threads(strategy: tf.distribute.Strategy) -> None:
    """Refuses CPU replicas with fewer operation threads than replicas: their collectives would hang.

    Args:
        strategy: A strategy that sums by TensorFlow's default collectives.

    Raises:
        SetupError: The thread pool is smaller than the number of replicas.
    """
    if "CPU" not in strategy.extended.worker_devices[0].upper():
        return
    threads = tf.config.threading.get_inter_op_parallelism_threads() or os.cpu_count() or 1
    if threads < strategy.num_replicas_in_sync:
        raise SetupError(
            message(
                "TensorFlow's collectives block one thread per CPU replica; with fewer threads they wait for ever.",
                f"replicas={strategy.num_replicas_in_sync}, inter-op threads={threads}",
                f"tf.config.threading.set_inter_op_parallelism_threads({4 * strategy.num_replicas_in_sync}), "
                "before TensorFlow's first operation",
            )
        )
