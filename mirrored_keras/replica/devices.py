"""Which devices train: one call from a number, a list or "auto" to a strategy."""

import numbers
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from mirrored_keras.errors import SetupError, message
from mirrored_keras.replica import gpu_choice, gpu_setup

Devices = int | str | Sequence[str | int] | None
#: Each CPU replica holds a copy of the model and four threads.
_MOST_CPU_REPLICAS = 256


def mirrored_strategy(
    devices: Devices = None,
    *,
    min_free_memory: int | str | None = None,
    memory_growth: bool | None = None,
    cross_device_ops: tf.distribute.CrossDeviceOps | None = None,
) -> tf.distribute.MirroredStrategy:
    """Makes a `tf.distribute.MirroredStrategy` over the devices that are meant.

    Called before TensorFlow's first operation, it hides the GPUs that were not chosen, so that no memory is taken on
    them, and lets the chosen ones take memory as they need it. Inside the process, the chosen GPUs are "GPU:0",
    "GPU:1", ... by physical id; the mapping is logged.

    Args:
        devices: `None`: every GPU, or one CPU replica where there is no GPU. "auto": every GPU with enough free
            memory, or one CPU replica. A number R: the first R GPUs, or, on a machine without any, R CPU replicas,
            which are made here if TensorFlow has not started yet. A list of numbers and UUIDs: physical ids, as
            `nvidia-smi` shows them whatever `CUDA_VISIBLE_DEVICES` is, and UUIDs like "GPU-8932f937" or their first
            characters. A list of names: TensorFlow's own, like "GPU:1", which hide nothing; with "CPU:0", "CPU:1"
            alone, the GPUs are hidden and the CPU devices made.
        min_free_memory: What every chosen GPU must have free: "2GB", or a number of MiB. "auto" and numbers pass over
            GPUs with less. `None` is 2 GB for "auto", and nothing otherwise.
        memory_growth: Whether GPUs take memory as they need it, instead of all at once. `None` turns it on if
            TensorFlow has not started yet and no memory limit was set.
        cross_device_ops: The engine that sums over replicas; `None` takes TensorFlow's default. The
            default works with one group of devices per process;
            `tf.distribute.ReductionToOneDevice()` has no such limit.

    Returns:
        The strategy. Models are made inside its `scope()`.

    Raises:
        SetupError: There are not as many devices, one is unknown or has too little memory, or TensorFlow has started
            already with fewer CPU devices or with other GPUs.

    Example:
        >>> from mirrored_keras import mirrored_strategy
        >>> strategy = mirrored_strategy(1)
        >>> strategy.num_replicas_in_sync
        1
    """
    if min_free_memory is not None:
        gpu_choice.mebibytes(min_free_memory)
    options: dict[str, Any] = {"min_free_memory": min_free_memory, "memory_growth": memory_growth}
    if devices is None or devices == "auto":
        names = gpu_setup.choose(devices, **options) or ["CPU:0"]
    elif isinstance(devices, numbers.Integral) and not isinstance(devices, bool):
        names = _first(int(devices), options)
    elif isinstance(devices, (list, tuple)) and devices:
        names = _listed(devices, options)
    else:
        raise SetupError(_message(devices, '`devices` is a number of replicas, a list of devices, "auto" or None.'))
    return tf.distribute.MirroredStrategy(names, cross_device_ops=cross_device_ops)


def _first(count, options):
    if count < 1:
        raise SetupError(_message(count, "`devices` must be a positive number of replicas."))
    names = gpu_setup.choose(count, **options)
    if names:
        return names
    if count > _MOST_CPU_REPLICAS:
        raise SetupError(_message(count, f"A machine without a GPU makes at most {_MOST_CPU_REPLICAS} CPU replicas."))
    if not _have_cpu_devices(count):
        present = len(tf.config.list_logical_devices("CPU"))
        raise SetupError(
            message(
                f"{count} CPU replicas need {count} logical CPU devices, and TensorFlow has started with {present}; "
                "they can only be made before its first operation.",
                f"devices={count}",
                f"strategy = mirrored_strategy({count})   # before any tensor, layer or dataset is made",
            )
        )
    return [f"CPU:{i}" for i in range(count)]


def _have_cpu_devices(count):
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu)
    if configured is not None and len(configured) >= count:
        return True
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        # blocking collectives hold a thread each, so that a pool of one thread per core can starve
        threads = tf.config.threading.get_inter_op_parallelism_threads()
        tf.config.threading.set_inter_op_parallelism_threads(max(threads, 4 * count))
    except RuntimeError:
        return len(tf.config.list_logical_devices("CPU")) >= count
    return True


def _listed(devices, options):
    numbered = [isinstance(device, numbers.Integral) or gpu_choice.is_uuid(device) for device in devices]
    wrong_type = [d for d in devices if isinstance(d, bool) or not isinstance(d, (str, numbers.Integral))]
    if wrong_type or any(numbered) != all(numbered):
        rule = "A list of devices has physical ids and UUIDs of GPUs, or names of TensorFlow, not both."
        raise SetupError(_message(list(devices), rule))
    if all(numbered):
        ids = [device if isinstance(device, str) else int(device) for device in devices]
        return gpu_setup.choose(ids, **options)
    if options["min_free_memory"] is not None:
        rule = '`min_free_memory` chooses among GPUs by physical id or UUID, by number or "auto", not by name.'
        raise SetupError(_message(list(devices), rule))
    return _named(devices, options["memory_growth"])


def _named(devices, memory_growth):
    short = [name.upper().removeprefix("/").removeprefix("DEVICE:") for name in devices]
    cpus = [int(name[4:]) for name in short if name.startswith("CPU:") and name[4:].isdigit()]
    if len(cpus) == len(short):
        gpu_setup.hide_all()
        _have_cpu_devices(max(cpus) + 1)
    else:
        gpu_setup.grow(memory_growth)
    known = tf.config.list_logical_devices()
    by_name = {f"{d.device_type}:{d.name.rsplit(':', 1)[1]}" for d in known}
    missing = [name for name, key in zip(devices, short, strict=True) if key not in by_name and "/JOB:" not in key]
    if missing or len(set(short)) != len(short):
        rule = f"Every device must exist and be named once; unknown: {missing}, there are: {sorted(by_name)}."
        raise SetupError(_message(list(devices), rule))
    return list(devices)


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
