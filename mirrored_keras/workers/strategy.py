"""The strategy that the environment asks for: several workers, or the devices of one machine."""

import json
import os
import shutil
from typing import Any

import tensorflow as tf

from mirrored_keras.errors import SetupError, message
from mirrored_keras.replica import gpu_setup, watchdog, workers
from mirrored_keras.replica.devices import Devices, mirrored_strategy


def multi_worker_strategy(
    devices: Devices = None, *, timeout_seconds: float = watchdog.DEFAULT_SECONDS
) -> tf.distribute.Strategy:
    """Makes the strategy that the environment asks for, so that one script runs on one machine and on many.

    `TF_CONFIG` with several workers (by `mirrored-keras launch`, Ray, by hand) gives `MultiWorkerMirroredStrategy`; a
    Slurm step of several tasks the same, by TensorFlow's `SlurmClusterResolver`; neither, `mirrored_strategy(devices)`.

    Call it before TensorFlow's first operation, on every worker; it returns when all of them are there.

    Args:
        devices: For `mirrored_strategy`, where there is one worker. A worker of several takes every GPU that it sees,
            or one CPU replica.
        timeout_seconds: How long a step, or a look at the other workers, may take before it ends with a
            `CollectiveError`: for example because one worker alone calls `evaluate`. Workers that die are found in
            seconds, whatever it is.

    Returns:
        The strategy. Models are made inside its `scope()`.

    Raises:
        SetupError: `TF_CONFIG` cannot be read, names parameter servers, or has no place for this process; TensorFlow
            has started already.

    Example:
        >>> from mirrored_keras.workers import multi_worker_strategy
        >>> multi_worker_strategy(1).num_replicas_in_sync  # no TF_CONFIG here
        1
    """
    if isinstance(timeout_seconds, bool) or not isinstance(timeout_seconds, (int, float)) or timeout_seconds <= 0:
        raise SetupError(
            message(
                "`timeout_seconds` is a positive number.",
                f"timeout_seconds={timeout_seconds!r}",
                "multi_worker_strategy(timeout_seconds=600)",
            )
        )
    resolver = _resolver()
    if resolver is None:
        return mirrored_strategy(devices)
    gpu_setup.grow(None)
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    except RuntimeError as error:
        if "program startup" not in str(error):
            raise
        raise SetupError(
            message(
                "Workers find each other before TensorFlow's first operation.",
                f"{str(error).splitlines()[0]}",
                "strategy = multi_worker_strategy()   # before any tensor, layer or dataset is made",
            )
        ) from error
    watchdog.set_limit(strategy, float(timeout_seconds))
    return strategy


def _resolver() -> Any:
    text = os.environ.get("TF_CONFIG")
    if text is not None:
        return tf.distribute.cluster_resolver.TFConfigClusterResolver() if _has_several(text) else None
    if int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1) > 1 and "SLURM_PROCID" in os.environ:
        return _of_slurm()
    return None


def _has_several(text):
    try:
        config = json.loads(text)
        cluster, task = dict(config.get("cluster", {})), dict(config.get("task", {}))
        counts = {job: len(addresses) for job, addresses in cluster.items()}
        kind, index = task.get("type"), int(task.get("index", 0))
    except (ValueError, TypeError, AttributeError) as error:
        raise _wrong(text, "it cannot be read", error) from error
    if counts.get("ps"):
        raise SetupError(
            message(
                "Parameter servers train asynchronously: what a step computes depends on who comes first, on no number "
                "of replicas alone.",
                f"TF_CONFIG with {counts['ps']} parameter servers",
                "a TF_CONFIG of workers alone: multi_worker_strategy()",
            )
        )
    if not cluster or sum(counts.get(job, 0) for job in ("chief", "worker")) < 2:
        return False
    if kind not in ("chief", "worker") or not 0 <= index < counts.get(kind, 0):
        raise _wrong(text, f"it has no {kind} {index}")
    return True


def _wrong(text, why, error=None):
    return SetupError(
        message(
            "`TF_CONFIG` lists the workers and says which one this process is.",
            f"TF_CONFIG={text[:300]!r}: {why}{'' if error is None else f' ({error})'}",
            'TF_CONFIG=\'{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}\'',
        )
    )


def _of_slurm():
    resolvers = tf.distribute.cluster_resolver
    if shutil.which("nvidia-smi"):
        return resolvers.SlurmClusterResolver()
    # without GPUs it needs numbers of them all the same, and names some that are not there
    tasks = int(os.environ["SLURM_STEP_NUM_TASKS"])
    slurm = resolvers.SlurmClusterResolver(gpus_per_node=tasks, gpus_per_task=1, auto_set_gpu=False)
    spec, (kind, index) = slurm.cluster_spec(), slurm.get_task_info()
    return resolvers.SimpleClusterResolver(spec, task_type=kind, task_id=index, rpc_layer="grpc")


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether this process is the one that writes files; true where there is only one.

    This package's files and Keras' callbacks need no such question: they are written by the chief alone.

    Args:
        strategy: Any strategy.

    Example:
        >>> from mirrored_keras.workers import is_chief, multi_worker_strategy
        >>> is_chief(multi_worker_strategy(1))
        True
    """
    return workers.is_chief(strategy)
