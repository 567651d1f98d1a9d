"""Makes TensorFlow see the chosen GPUs and no other, before it starts and takes memory on each of them."""

import os
from collections.abc import Sequence

import tensorflow as tf

from mirrored_keras.errors import SetupError, message
from mirrored_keras.replica import gpu_choice

# Names of the physical GPUs that calls in this process have chosen: a later call may use a part of them, and finds
# its own memory taken there.
_CHOSEN: set[str] = set()


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
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    if value is not None and value != gpu_choice.without_blanks(value):
        # CUDA reads the variable when TensorFlow first lists its devices, below
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu_choice.without_blanks(value)
    if devices is None and min_free_memory is not None:
        devices = "auto"
    if min_free_memory is None and devices == "auto":
        min_free_memory = gpu_choice.DEFAULT_FREE_MEMORY
    needed = 0 if min_free_memory is None else gpu_choice.mebibytes(min_free_memory)
    physical = tf.config.list_physical_devices("GPU")
    named = isinstance(devices, (list, tuple))
    shown = tf.config.get_visible_devices("GPU")
    candidates = [i for i, gpu in enumerate(physical) if gpu in shown]
    if not candidates and not named:
        return []
    gpus = _facts(len(physical), named, devices, needed)
    if named:
        candidates = gpu_choice.positions_of(devices, gpus)  # type: ignore[arg-type]  # narrowed by `named`
    elif isinstance(devices, int) and devices > len(candidates):
        raise SetupError(
            message(
                f"There are only {len(candidates)} GPUs; every replica needs one of its own.",
                f"devices={devices!r}, GPUs: {', '.join(str(gpus[i]) for i in candidates)}",
                f"mirrored_strategy({len(candidates)}), or CUDA_VISIBLE_DEVICES=-1 for CPU replicas",
            )
        )
    if needed:
        candidates = _enough(candidates, gpus, physical, needed, devices)
    if isinstance(devices, int):
        candidates = candidates[:devices]
    names = _show([physical[i] for i in candidates], [gpus[i] for i in candidates], devices)
    grow(memory_growth)
    if len(physical) > len(candidates) or os.environ.get("CUDA_VISIBLE_DEVICES") is not None or named:
        mapping = ", ".join(f"{gpus[i]} is {name}" for i, name in zip(candidates, names, strict=True))
        # TensorFlow's own logger, next to its line on the strategy, is shown unless the user has turned it down
        tf.get_logger().info("Physical GPUs under TensorFlow's names: %s", mapping)
    return names


def hide_all() -> None:
    """Hides all GPUs, for replicas on the CPU; where TensorFlow has started, its GPUs stay as they are."""
    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:
        tf.get_logger().info("TensorFlow has started with its GPUs, and keeps them beside the CPU replicas.")


def _facts(count, named, devices, needed):
    installed = gpu_choice.query_gpus() if count else None
    if installed is None and count and needed:
        tf.get_logger().info("nvidia-smi does not answer, so that all GPUs count as free.")
    gpus = gpu_choice.visible_gpus(os.environ, installed, count) if count else []
    if gpus is not None:
        totals = {gpu.total for gpu in gpus}
        if len(totals) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
            tf.get_logger().warning(
                "The GPUs are unlike, and CUDA may number the fastest first, others than nvidia-smi: set "
                "CUDA_DEVICE_ORDER=PCI_BUS_ID before Python starts."
            )
        return gpus
    listed = "no answer" if installed is None else ", ".join(map(str, installed))
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
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


def _enough(candidates, gpus, physical, needed, devices):
    held = [i for i, gpu in enumerate(physical) if gpu.name in _CHOSEN]
    enough = gpu_choice.with_free_memory(gpus, candidates, needed, held=held)
    wanted = {"auto": 1}.get(devices, devices) if isinstance(devices, (int, str)) else len(candidates)
    if len(enough) == len(candidates):
        return enough
    if _has_started() and not held:
        # what is taken may be this process' own: TensorFlow takes nearly all memory of every GPU that it sees
        if len(candidates) == 1:
            return candidates
        raise _started_error(devices, [gpus[i] for i in enough])
    if len(enough) < wanted:
        raise SetupError(
            message(
                f"Every replica needs a GPU with {needed} MiB of free memory; there are: "
                f"{', '.join(str(gpus[i]) for i in candidates)}.",
                f"devices={devices!r}",
                "nvidia-smi   # shows who uses them; or a smaller min_free_memory",
            )
        )
    return enough


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
