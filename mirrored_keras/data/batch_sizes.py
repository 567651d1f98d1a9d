"""From the rows of a replica to the rows of a global batch, and back; who gets how many rows."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from mirrored_keras.errors import BatchError, message

if TYPE_CHECKING:
    import tensorflow as tf


def global_batch_size(per_replica: int, strategy: tf.distribute.Strategy) -> int:
    """Returns the rows of the global batch that gives every replica a number of rows.

    G = per_replica * R, with R replicas on all workers together.

    Args:
        per_replica: Rows of a replica.
        strategy: The strategy.

    Returns:
        Rows of the global batch: the `batch_size` of `fit`, and the size of the batches of a dataset.

    Raises:
        BatchError: `per_replica` is not a positive integer.

    Example:
        >>> import tensorflow as tf
        >>> global_batch_size(32, tf.distribute.get_strategy())
        32
    """
    check_rows("per_replica", per_replica)
    return per_replica * strategy.num_replicas_in_sync


def per_replica_batch_size(global_batch: int, strategy: tf.distribute.Strategy) -> int:
    """Returns the most rows that a replica gets of a global batch.

    ceil(G / R) for R replicas; where that does not divide evenly, the last replicas get one row fewer.

    Args:
        global_batch: Rows of the global batch.
        strategy: The strategy.

    Returns:
        Rows of the first replica.

    Raises:
        BatchError: `global_batch` is not a positive integer.

    Example:
        >>> import tensorflow as tf
        >>> per_replica_batch_size(32, tf.distribute.get_strategy())
        32
    """
    check_rows("global_batch", global_batch)
    return -(-global_batch // strategy.num_replicas_in_sync)


def rows_per_replica(global_batch: int, strategy: tf.distribute.Strategy) -> list[int]:
    """Returns the rows that each replica gets of a global batch in `fit`, `evaluate` and `predict`.

    G // R each, and one more for the first G % R of R replicas: none is without rows unless G < R.

    Args:
        global_batch: Rows of the global batch, G.
        strategy: The strategy.

    Returns:
        One number per replica; their sum is G.

    Raises:
        BatchError: `global_batch` is not a positive integer.

    Example:
        >>> from mirrored_keras import mirrored_strategy
        >>> rows_per_replica(7, mirrored_strategy(1))
        [7]
    """
    check_rows("global_batch", global_batch)
    return _shares(global_batch, strategy.num_replicas_in_sync)


def rows_of_batches(dataset: Any, strategy: tf.distribute.Strategy, *, batches: int | None = None) -> list[list[int]]:
    """Reads batches of a dataset and returns the rows per replica of each of them.

    Args:
        dataset: A `tf.data.Dataset` of global batches, which is shared out as `fit` does it; or one that was
            distributed already, of which the rows on this machine are counted.
        strategy: The strategy.
        batches: How many are read; `None` reads to the end. Defaults to `None`.

    Returns:
        For each batch one number per replica.

    Raises:
        BatchError: The dataset's elements are no batches, or it has no end and `batches` is `None`.

    Example:
        >>> import tensorflow as tf
        >>> rows_of_batches(tf.data.Dataset.range(7).batch(4), tf.distribute.get_strategy())
        [[4], [3]]
    """
    import tensorflow as tf

    if batches is not None:
        check_rows("batches", batches)
    elif isinstance(dataset, tf.data.Dataset) and int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise BatchError(
            message("A dataset without end is read in part.", "batches=None", "rows_of_batches(..., batches=10)")
        )
    counted = []
    for batch in itertools.islice(iter(dataset), batches):
        parts = [_rows(part) for part in strategy.experimental_local_results(tf.nest.flatten(batch)[0])]
        divided = len(parts) == 1 and strategy.num_replicas_in_sync > 1
        counted.append(_shares(parts[0], strategy.num_replicas_in_sync) if divided else parts)
    return counted


def _shares(rows, replicas):
    return [rows // replicas + (replica < rows % replicas) for replica in range(replicas)]


def _rows(tensor):
    shape = getattr(tensor, "dense_shape", tensor.shape)  # sparse tensors have both
    if not len(shape):
        raise BatchError(
            message(
                "The elements of a dataset must be batches: every tensor needs a first dimension, its rows.",
                f"shape={tuple(shape)}",
                "dataset.batch(64)",
            )
        )
    return int(shape[0])


def check_rows(name: str, value: Any) -> None:
    """Refuses what is no number of rows.

    Args:
        name: Of the argument.
        value: What was given.

    Raises:
        BatchError: It is not a positive integer.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BatchError(message("A number of rows is a positive integer.", f"{name}={value!r}", f"{name}=64"))
