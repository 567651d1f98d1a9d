"""Sums over replicas: gradients in one all-reduce, row counts and denominators on one device."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from mirrored_keras.errors import CollectiveError, SetupError, message
from mirrored_keras.replica import private
from mirrored_keras.replica.devices import check_threads
from mirrored_keras.replica.watchdog import watched

_SPARSE = [0]  # sums of sparse gradients that were traced or run

Gradient = Any  # a tf.Tensor, tf.IndexedSlices, or None where there is no gradient


def replicas_in_context() -> int:
    """Returns R inside `strategy.run`, and 1 outside replica context or without a strategy."""
    context = tf.distribute.get_replica_context()
    return 1 if context is None else context.num_replicas_in_sync


def replica_in_context() -> int:
    """Returns r inside `strategy.run`, counted over all workers, and 0 outside replica context."""
    context = tf.distribute.get_replica_context()
    # a constant tensor, in graphs and eagerly
    return 0 if context is None else int(tf.get_static_value(context.replica_id_in_sync_group))


def all_sum(values: Sequence[Gradient]) -> list[Gradient]:
    """Returns the sums of gradients over all replicas: ALL_SUM of the contract.

    Dense tensors of one dtype travel in one all-reduce, which the strategy's engine packs into one
    buffer; `IndexedSlices` are gathered and stay sparse. With one replica the values come back as
    they are. Must be called by every replica, also by one without rows, with zeros.

    Args:
        values: Tensors, `IndexedSlices` or `None` (no gradient; `None` on every replica).

    Returns:
        A list of the same length and kinds.
    """
    values = list(values)
    if replicas_in_context() == 1:
        return values
    context = tf.distribute.get_replica_context()
    groups: dict[tuple[bool, str], list[int]] = {}
    for index, value in enumerate(values):
        if value is not None:
            groups.setdefault((isinstance(value, tf.IndexedSlices), value.dtype.name), []).append(index)
    for (is_sparse, _), indices in groups.items():
        _SPARSE[0] += is_sparse
        sums = context.all_reduce(tf.distribute.ReduceOp.SUM, [values[i] for i in indices])
        for index, total in zip(indices, sums, strict=True):
            values[index] = total
    return values


def sparse_sums() -> int:
    """Returns how often sparse gradients were summed in this process, while tracing or eagerly."""
    return _SPARSE[0]


def all_sum_small(values: tf.Tensor) -> tf.Tensor:
    """Returns the sum over replicas of a few numbers, without a collective op of its own.

    On one machine the values of all replicas are added on one device and sent back: for a handful
    of numbers that is several times cheaper than an all-reduce, whose cost is its start.

    Args:
        values: A small dense tensor, the same shape on every replica.

    Returns:
        The sum, on every replica.
    """
    if replicas_in_context() == 1:
        return values
    context = tf.distribute.get_replica_context()
    if private.in_multi_worker_mode(context.strategy):
        return context.all_reduce(tf.distribute.ReduceOp.SUM, values)

    def add(_, per_replica):
        return tf.distribute.ReductionToOneDevice().reduce(
            tf.distribute.ReduceOp.SUM, per_replica, destinations=per_replica
        )

    return context.merge_call(add, args=(values,))


def combined_small(combine: Callable[..., tf.Tensor], *values: tf.Tensor) -> tf.Tensor:
    """Returns what a function makes of the values of all replicas, computed on one device and sent to all.

    Args:
        combine: Takes one list per entry of `values`, with the value of every replica in replica order.
        *values: Small dense tensors, the same shapes on every replica.

    Returns:
        The result of `combine`, the same numbers on every replica.
    """
    context = tf.distribute.get_replica_context()
    values = tuple(tf.identity(value) for value in values)
    if private.in_multi_worker_mode(context.strategy):
        gathered = [context.all_gather(value[tf.newaxis], axis=0) for value in values]
        return combine(*(tf.unstack(part, num=context.num_replicas_in_sync) for part in gathered))

    def on_one_device(strategy, *per_replica):
        parts = [list(strategy.experimental_local_results(value)) for value in per_replica]
        with tf.device(parts[0][0].device):
            result = combine(*parts)
        return tf.distribute.ReductionToOneDevice().broadcast(result, destinations=per_replica[0])

    return context.merge_call(on_one_device, args=values)


def all_gather_with_gradient(
    value: tf.Tensor,
    *,
    has_rows: tf.Tensor | bool,
    around: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> tf.Tensor:
    """Returns the values of all replicas, with the gradient of all replicas' losses with respect to this one.

    Differentiable any number of times; one reduction forward and one backward. A replica without rows gives
    zeros, and no gradient comes from it, whatever it computed.

    Args:
        value: A small float tensor, the same shape on every replica.
        has_rows: Whether B > 0 on this replica.
        around: Makes a context manager to hold during each reduction.

    Returns:
        Shape `(R, *value.shape)`, the same on every replica.
    """

    def where_rows(tensor):
        return tf.where(has_rows, tensor, tf.zeros_like(tensor))

    @tf.custom_gradient
    def sum_over_replicas(tensor):
        with around():
            total = all_sum_small(tensor)
        return total, lambda upstream: sum_over_replicas(where_rows(upstream))

    @tf.custom_gradient
    def gather(tensor):
        with around():
            gathered = combined_small(tf.stack, tensor)
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return gathered, lambda upstream: sum_over_replicas(where_rows(upstream))[replica]

    return gather(where_rows(value))


def rows_before_and_in_all(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns where this replica's rows lie among those of all replicas.

    Args:
        rows: int32 vector, this replica's numbers of rows of several tensors.

    Returns:
        The rows of earlier replicas and those of all replicas, int32 vectors like `rows`.
    """
    context = tf.distribute.get_replica_context()
    replica, replicas = context.replica_id_in_sync_group, context.num_replicas_in_sync
    # float64 counts exactly, and is summed on every device
    own = tf.one_hot(replica, replicas, dtype=tf.float64)[:, None] * tf.cast(rows, tf.float64)
    counts = tf.cast(all_sum_small(own), tf.int32)
    earlier = tf.range(replicas) < replica
    return tf.reduce_sum(tf.where(earlier[:, None], counts, 0), axis=0), tf.reduce_sum(counts, axis=0)


_CHECK_LOCK = threading.Lock()
_CHECKED = "_mirrored_keras_collective_checked"
_DEVICE_GROUPS: dict[str, tuple[str, ...]] = {}


def check_collective(strategy: tf.distribute.Strategy) -> None:
    """Refuses a strategy whose all-reduce does not sum over every replica. Cheap, once per strategy.

    Each replica contributes a number that no partial sum can imitate: replica r gives 2^r, so the sum
    must be 2^R - 1 on all of them.

    Args:
        strategy: The strategy to train with.

    Raises:
        CollectiveError: The sum is wrong on some replica.
        SetupError: TensorFlow's default collectives were already used with other devices in this process.

    Example:
        >>> from mirrored_keras import check_collective, mirrored_strategy
        >>> check_collective(mirrored_strategy(1))
    """
    if strategy.num_replicas_in_sync == 1:
        return
    with _CHECK_LOCK:
        if getattr(strategy, _CHECKED, False):
            return
        _check_device_group(strategy)
        with watched(strategy, "the first sum over all workers"):
            sums = _probe(strategy)
        expected = [2.0**strategy.num_replicas_in_sync - 1] * len(sums)
        if sums != expected:
            raise CollectiveError(
                message(
                    "The strategy's all-reduce must sum over every replica; it does not, so training "
                    "would leave out part of every batch.",
                    f"sums={sums}, expected={expected}, cross_device_ops={private.cross_device_ops_name(strategy)}",
                    "make the strategy without `cross_device_ops`, or with "
                    "tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())",
                )
            )
        setattr(strategy, _CHECKED, True)


def _probe(strategy):
    @tf.function(autograph=False)
    def probe():
        def on_replica():
            replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
            # a vector and a number, as gradients come in lists of different shapes
            vector, number = all_sum([tf.fill([3], 2.0**replica), 2.0**replica])
            return tf.concat([vector, [number]], axis=0)

        return strategy.run(on_replica)

    return [float(v) for result in strategy.experimental_local_results(probe()) for v in result.numpy()]


def _check_device_group(strategy):
    if private.in_multi_worker_mode(strategy) or not private.uses_collective_ops(strategy):
        return
    check_threads(strategy)
    devices = tuple(strategy.extended.worker_devices)
    first = _DEVICE_GROUPS.setdefault("default", devices)
    if first != devices:
        raise SetupError(
            message(
                "TensorFlow's default collectives work with one group of devices per process: a second "
                "`MirroredStrategy` over other devices aborts, and poisons the first one.",
                f"devices={list(devices)}, used before={list(first)}",
                "mirrored_strategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice()) for every "
                "strategy of the process, or one process per strategy",
            )
        )
