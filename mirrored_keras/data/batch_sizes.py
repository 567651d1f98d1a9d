"""From the rows of a replica to the rows of a global batch, and back."""

from __future__ import annotations

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

    ceil(G / R) for R replicas; where that does not divide evenly, the last replicas get fewer rows, or none.

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
