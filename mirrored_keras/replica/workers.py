"""The processes that a strategy spans: how many there are, which one this is, and small tables that all of them see."""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrored_keras.errors import SetupError, message
from mirrored_keras.replica import private
from mirrored_keras.replica.watchdog import watched

_GATHERERS: weakref.WeakKeyDictionary[tf.distribute.Strategy, Any] = weakref.WeakKeyDictionary()


def are_several(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether replicas of a strategy live in more than one process.

    Args:
        strategy: Any strategy.
    """
    return private.in_multi_worker_mode(strategy)


def number_of(strategy: tf.distribute.Strategy) -> int:
    """Returns how many processes train together.

    Args:
        strategy: Any strategy.
    """
    return sum(_tasks(strategy).values()) if are_several(strategy) else 1


def index_of(strategy: tf.distribute.Strategy) -> int:
    """Returns which of them this one is; the chief is 0.

    Args:
        strategy: Any strategy.
    """
    if not are_several(strategy):
        return 0
    resolver = strategy.cluster_resolver
    has_chief = "chief" in _tasks(strategy)
    return int(resolver.task_id) + (1 if has_chief and resolver.task_type != "chief" else 0)


def replicas_here(strategy: tf.distribute.Strategy) -> range:
    """Returns the numbers of the replicas of this process.

    Args:
        strategy: Any strategy.
    """
    count = strategy.num_replicas_in_sync // number_of(strategy)
    return range(index_of(strategy) * count, (index_of(strategy) + 1) * count)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether this process writes files for all of them; true where there is only one.

    Args:
        strategy: Any strategy.
    """
    return index_of(strategy) == 0


def name_of(strategy: tf.distribute.Strategy, index: int) -> str:
    """Returns what a process is called in `TF_CONFIG`.

    Args:
        strategy: The strategy.
        index: From `index_of`.
    """
    if "chief" not in _tasks(strategy):
        return f"worker {index}"
    return "the chief" if index == 0 else f"worker {index - 1}"


def _tasks(strategy):
    spec = strategy.cluster_resolver.cluster_spec()
    return {job: spec.num_tasks(job) for job in spec.jobs if job in ("chief", "worker")}


def gathered(strategy: tf.distribute.Strategy, numbers: Sequence[float], *, what: str) -> np.ndarray:
    """Returns the numbers of all processes. Must be called by each of them, with as many numbers.

    Args:
        strategy: The strategy.
        numbers: Of this process; float64 holds integers up to 2^53.
        what: What the process is about to do, for the error where others do not come along.

    Returns:
        A table, one row per process.

    Raises:
        CollectiveError: Another process has ended, failed, or does something else.
    """
    mine = np.asarray(numbers, np.float64)
    if not are_several(strategy):
        return mine[np.newaxis]
    if strategy not in _GATHERERS:
        _GATHERERS[strategy] = _gatherer(strategy.num_replicas_in_sync)
    with watched(strategy, what), strategy.scope():
        found = strategy.experimental_local_results(_GATHERERS[strategy](mine))[0].numpy()
    return found[:: strategy.num_replicas_in_sync // number_of(strategy)]


def _gatherer(replicas):
    def on_replica(row):
        context = tf.distribute.get_replica_context()
        place = tf.range(replicas) == context.replica_id_in_sync_group
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.where(place[:, tf.newaxis], row, 0.0))

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.float64)])
    def gather(row):
        return tf.distribute.get_strategy().run(on_replica, args=(row,))

    return gather


def seed_of_chief(strategy: tf.distribute.Strategy, seed: int) -> int:
    """Returns the seed that the chief has drawn, in every process.

    Args:
        strategy: The strategy.
        seed: Of this process, below 2^31.
    """
    return int(gathered(strategy, [seed], what="agreeing on a seed")[0, 0])


def values_of_all_replicas(strategy: tf.distribute.Strategy, value: Any) -> list[Any]:
    """Returns the values of all replicas, in replica order; those of other processes come by a collective.

    Args:
        strategy: The strategy.
        value: What `strategy.run` has returned; over several processes a dense tensor of numbers, of which the first
            dimension may differ.

    Returns:
        One value per replica.

    Raises:
        SetupError: Over several processes, a value is not dense, or has text in it.
    """
    local = list(strategy.experimental_local_results(value))
    if not are_several(strategy):
        return local
    local = [
        part if isinstance(part, (tf.RaggedTensor, tf.SparseTensor)) else tf.convert_to_tensor(part) for part in local
    ]
    if not all(isinstance(part, tf.Tensor) and part.dtype != tf.string for part in local):
        raise SetupError(
            message(
                "What a step or `predict` returns on several workers are dense tensors of numbers, which workers can "
                "send to each other.",
                f"{type(local[0]).__name__} of {local[0].dtype.name}",
                "tensor.to_tensor() or tf.sparse.to_dense(tensor) in `call`; text outside the model",
            )
        )
    run = _ALL_VALUES if tf.executing_eagerly() else _all_values
    # a list of per-replica values, the same numbers on each
    return [strategy.experimental_local_results(part)[0] for part in strategy.run(run, args=(value,))]


def _all_values(value):
    context = tf.distribute.get_replica_context()
    value = tf.convert_to_tensor(value)
    replicas, dtype = context.num_replicas_in_sync, value.dtype
    sent = value if dtype.is_floating or dtype.is_complex else tf.cast(value, tf.int64)
    if value.shape.rank == 0:
        parts = tf.unstack(context.all_gather(sent[tf.newaxis], axis=0), num=replicas)
    else:
        place = tf.range(replicas) == context.replica_id_in_sync_group
        # float64 counts exactly, and is summed on every device
        rows = tf.where(place, tf.cast(tf.shape(sent)[0], tf.float64), 0.0)
        sizes = tf.cast(context.all_reduce(tf.distribute.ReduceOp.SUM, rows), tf.int32)
        parts = tf.split(context.all_gather(sent, axis=0), sizes, num=replicas)
        parts = [tf.ensure_shape(part, [None, *value.shape[1:]]) for part in parts]
    return [tf.cast(part, dtype) for part in parts]


_ALL_VALUES = tf.function(_all_values, autograph=False)  # TensorFlow gathers in graphs alone
