"""Makes TensorFlow see the chosen GPUs and no other, before it starts and takes memory on each of them."""

import logging
import os
from collections.abc import Sequence

import tensorflow as tf

from mirrored_keras.errors import SetupError, message
from mirrored_keras.replica import gpu_choice

# What calls in this process have chosen: a later call may use a part of it, and finds its own memory taken there.
_CHOSEN: set[str] = set()
# The GPUs that they have hidden from CUDA.
_HIDDEN: list[gpu_choice.Gpu] = []


def choose(
    devices: int | str | Sequence[int | str] | None, *, min_free_memory: int | str | None, memory_growth: bool | None
) -> list[str]:
    """Chooses GPUs, hides the others, and turns on memory growth.

    Args:
        devices: `None`: all that are visible. "auto": those with enough free memory. A number: the first so many.
            A list: physical ids and UUIDs.
        min_free_memory: What each must have free; `None` asks for 2 GB with "auto", and for nothing else.
        memory_growth: Whether memory is taken as it is needed; `None` turns it on if TensorFlow has not started.

    Returns:
        TensorFlow's names, in the order of `devices`; none if there are no GPUs and none is named.

    Raises:
        SetupError: A GPU is not there or has too little memory, or TensorFlow has started and sees others.
    """
    if devices is None and min_free_memory is not None:
        devices = "auto"
    if min_free_memory is None and devices == "auto":
        min_free_memory = gpu_choice.DEFAULT_FREE_MEMORY
    needed = 0 if min_free_memory is None else gpu_choice.mebibytes(min_free_memory)
    installed = gpu_choice.query_gpus()
    _hide_from_cuda(devices, installed, needed)
    physical = tf.config.list_physical_devices("GPU")
    shown = tf.config.get_visible_devices("GPU")
    candidates = [i for i, gpu in enumerate(physical) if gpu in shown]
    if not candidates and not isinstance(devices, (list, tuple)):
        if installed and not physical and gpu_choice.visible_gpus(os.environ, installed):
            tf.get_logger().warning("nvidia-smi sees %d GPUs, and TensorFlow none: the CPU trains.", len(installed))
        return []
    gpus = _facts(len(physical), installed, devices, needed)
    held = [i for i, gpu in enumerate(physical) if gpu.name in _CHOSEN]
    if needed and not held and _has_started():
        enough = gpu_choice.with_free_memory(gpus, candidates, needed, held)
        if len(enough) < len(candidates) and len(candidates) > 1:
            # what is taken may be this process' own: TensorFlow takes nearly all memory of every GPU that it sees
            raise _started_error(devices, [gpus[i] for i in enough])
        held = candidates
    try:
        chosen = gpu_choice.select(devices, gpus, candidates, needed=needed, held=held)
    except SetupError as error:
        hidden = isinstance(devices, (list, tuple)) and not _find(devices, gpus) and _find(devices, [*gpus, *_HIDDEN])
        if hidden:
            raise _started_error(devices, hidden) from error  # an earlier call chose others
        raise
    names = _show([physical[i] for i in chosen], [gpus[i] for i in chosen], devices)
    grow(memory_growth)
    mapping = ", ".join(f"{gpus[i]} is {name}" for i, name in zip(chosen, names, strict=True))
    same = all(f"GPU:{gpus[i].index}" == name for i, name in zip(chosen, names, strict=True))
    # a warning is shown outside notebooks too, and who has two numbers for one GPU is to see both
    tf.get_logger().log(
        logging.INFO if same else logging.WARNING, "Physical GPUs under TensorFlow's names: %s", mapping
    )
    return names


def _find(devices, gpus):
    try:
        return [gpus[i] for i in gpu_choice.positions_of(devices, gpus)]
    except SetupError:
        return []


def _hide_from_cuda(devices, installed, needed):
    """Narrows `CUDA_VISIBLE_DEVICES`, which CUDA reads when TensorFlow first lists its devices.

    What TensorFlow merely does not show, CUDA still sees, and some of its versions (and other libraries) open a
    context of 100 to 500 MB on each GPU that CUDA sees.
    """
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    if value is not None:
        value = os.environ["CUDA_VISIBLE_DEVICES"] = gpu_choice.without_blanks(value)
    gpus = gpu_choice.visible_gpus(os.environ, installed)
    if not gpus or _CHOSEN:
        return
    try:
        chosen = gpu_choice.select(devices, gpus, range(len(gpus)), needed=needed)
    except SetupError:
        return  # said later, when it is known what TensorFlow sees
    if len(chosen) == len(gpus):
        return
    # UUIDs mean the same in whatever order CUDA numbers
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[i].uuid or gpus[i].cuda_name for i in sorted(chosen))
    if len(tf.config.list_physical_devices("GPU")) == len(chosen):
        _HIDDEN.extend(gpu for i, gpu in enumerate(gpus) if i not in chosen)
    elif value is None:  # CUDA had read the variable before: it has to say what CUDA shows
        del os.environ["CUDA_VISIBLE_DEVICES"]
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = value


def hide_all() -> None:
    """Hides all GPUs, for replicas on the CPU; where TensorFlow has started, its GPUs stay as they are."""
    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:
        tf.get_logger().info("TensorFlow has started with its GPUs, and keeps them beside the CPU replicas.")


def _facts(count, installed, devices, needed):
    if installed is None and count and needed:
        tf.get_logger().warning("nvidia-smi does not answer, so that all GPUs count as free.")
    gpus = gpu_choice.visible_gpus(os.environ, installed)
    if gpus is None:
        gpus = [gpu_choice.Gpu(index) for index in range(count)]
    if not count:
        return []
    if len(gpus) == count:
        if len({gpu.total for gpu in gpus}) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
            tf.get_logger().warning(
                "The GPUs are unlike, and CUDA may number the fastest first, others than nvidia-smi: set "
                "CUDA_DEVICE_ORDER=PCI_BUS_ID before Python starts."
            )
        return gpus
    if isinstance(devices, (list, tuple)):
        listed = "no answer" if installed is None else ", ".join(map(str, installed))
        variable = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise SetupError(
            message(
                "Physical ids and UUIDs need a TensorFlow that sees the GPUs which `CUDA_VISIBLE_DEVICES` and "
                "nvidia-smi name; it does not, because the variable was changed too late, names what is not there, "
                "or GPUs are split (MIG).",
                f"devices={list(devices)!r}, TensorFlow sees {count}, CUDA_VISIBLE_DEVICES={variable!r}, "
                f"nvidia-smi: {listed}",
                "CUDA_VISIBLE_DEVICES=... python script.py   # set before Python starts; then mirrored_strategy()",
            )
        )
    if needed:
        tf.get_logger().warning("nvidia-smi and TensorFlow see other GPUs: all of TensorFlow's count as free.")
    return [gpu_choice.Gpu(uuid=f"TensorFlow's GPU {i}") for i in range(count)]


def _has_started():
    shown = tf.config.get_visible_devices("GPU")
    try:
        tf.config.set_visible_devices([], "GPU")
        tf.config.set_visible_devices(shown, "GPU")
    except RuntimeError:
        return True
    return False


def _show(chosen, facts, devices):
    physical = tf.config.list_physical_devices("GPU")
    shown = tf.config.get_visible_devices("GPU")
    # what an earlier strategy uses is not taken from it
    part_of_earlier = _CHOSEN and all(gpu in shown for gpu in chosen)
    if set(chosen) != set(shown) and not part_of_earlier:
        try:
            tf.config.set_visible_devices(chosen, "GPU")
        except RuntimeError as error:
            raise _started_error(devices, facts) from error
        shown = chosen
    _CHOSEN.update(gpu.name for gpu in chosen)
    first, number = {}, 0
    for gpu in physical:  # TensorFlow numbers by physical order, in whatever order they were made visible
        if gpu in shown:
            first[gpu.name] = f"GPU:{number}"
            number += len(tf.config.get_logical_device_configuration(gpu) or [None])
    return [first[gpu.name] for gpu in chosen]


def _started_error(devices, facts):
    physical = len(tf.config.list_physical_devices("GPU"))
    shown = len(tf.config.get_visible_devices("GPU"))
    wanted = ",".join(fact.cuda_name for fact in facts) or "..."
    return SetupError(
        message(
            "GPUs are chosen before TensorFlow's first operation, which takes memory on every GPU that it sees; "
            "it has started with others.",
            f"devices={devices!r}, TensorFlow started with {shown} of {physical} GPUs",
            f"CUDA_VISIBLE_DEVICES={wanted} python script.py   # or mirrored_strategy before any tensor, layer or "
            "dataset is made",
        )
    )


def grow(memory_growth: bool | None) -> None:
    """Sets memory growth on all visible GPUs: TensorFlow wants the same on each of them.

    Args:
        memory_growth: `None` turns it on where that can still be done.

    Raises:
        SetupError: A boolean was asked for, and TensorFlow has started with the other, or a memory limit is set.
    """
    for gpu in tf.config.get_visible_devices("GPU"):
        if memory_growth is None and tf.config.get_logical_device_configuration(gpu):
            continue  # its memory was limited by hand, which excludes growth
        try:
            tf.config.experimental.set_memory_growth(gpu, memory_growth is not False)
        except (RuntimeError, ValueError) as error:
            if memory_growth is None:
                tf.get_logger().info("TensorFlow has started, so that memory growth stays as it is.")
                return
            raise SetupError(
                message(
                    "Memory growth is set before TensorFlow's first operation, and excludes a memory limit.",
                    f"memory_growth={memory_growth!r}, {gpu.name}: {error}",
                    f"mirrored_strategy(..., memory_growth={memory_growth!r})   # before any tensor, layer or dataset "
                    "is made",
                )
            ) from error
