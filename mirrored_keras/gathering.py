"""The rows of all replicas on every replica, in the order of the global batch, with exact gradients."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.errors import BatchError, SetupError, message
from mirrored_keras.global_batch import GlobalBatch
from mirrored_keras.replica import collective
from mirrored_keras.replica.rows import first_leaf
from mirrored_keras.replica.thread_state import own_tensors_kept


def gather_rows(values: Any) -> Any:
    """Returns the rows of all replicas, in the order of the global batch, on every replica.

    With B_r rows on replica r the result has G = sum_r B_r rows; it is what one replica holds. A loss L
    computed from it is the loss of one replica, the same number on every replica, and as such in the units of
    `compute_loss`: sum_r (B_r / G) * L = L. The gradient is that of one replica, too: what the replicas' shares
    have as gradients with respect to the G rows is summed, and each replica goes on with its own B_r rows.

    Call it in replica context (in a layer, `compute_loss`, `train_step`), on every replica and not in a branch.
    Every replica does the work for all rows.

    Args:
        values: A dense tensor of numbers or bools of shape `(B, ...)`, or a structure of such; `None` stays. All
            dimensions but the first are the same on all replicas.

    Returns:
        The structure, with tensors of shape `(G, ...)` and the same dtypes; `values` itself with one replica. A
        replica without rows adds none and gets the same result as the others.

    Raises:
        BatchError: A value is a string, ragged, sparse or has no rows.
        SetupError: The step trains in micro-batches.

    Example:
        >>> import keras, tensorflow as tf
        >>> from mirrored_keras import DistributedModel, gather_rows
        >>> class Decorrelated(DistributedModel):
        ...     def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        ...         y_pred = gather_rows(y_pred)  # the covariance of all rows is no mean over replicas
        ...         centred = y_pred - keras.ops.mean(y_pred, axis=0)
        ...         return keras.ops.mean(keras.ops.square(keras.ops.matmul(keras.ops.transpose(centred), centred)))
        >>> inputs = keras.Input((3,))
        >>> model = Decorrelated(inputs, keras.layers.Dense(2)(inputs))
        >>> model.compile("sgd")
        >>> history = model.fit(tf.ones((4, 3)), verbose=0)
    """
    check_all_rows_are_there("gather_rows or GlobalBatchMetric")
    leaves = [leaf for leaf in keras.tree.flatten(values) if leaf is not None]
    if not leaves or collective.replicas_in_context() == 1:
        return values
    for leaf in leaves:
        _check(leaf)
    model = GlobalBatch.current(first_leaf(leaves)).model
    with own_tensors_kept(model):
        counts = tf.stack([tf.cast(GlobalBatch(leaf).rows, tf.int32) for leaf in leaves])
        before, total = collective.rows_before_and_in_all(counts)
    padded = [
        _among_zeros(_summable(leaf), counts[i], before[i], total[i] - before[i] - counts[i])
        for i, leaf in enumerate(leaves)
    ]
    gathered = iter(
        tf.ensure_shape(tf.cast(rows, leaf.dtype), [None, *leaf.shape[1:]])
        for rows, leaf in zip(_summed(padded, model), leaves, strict=True)
    )
    return keras.tree.map_structure(lambda leaf: None if leaf is None else next(gathered), values)


def check_all_rows_are_there(user: str) -> None:
    """Refuses, on any number of replicas, what needs all rows while a step trains a piece of them.

    Args:
        user: What needs them, for the message.

    Raises:
        SetupError: The running step trains in micro-batches.
    """
    active = GlobalBatch.active()
    if active is not None and active.is_piece:
        raise SetupError(
            message(
                "The rows of the global batch are not all there while a piece of it is trained.",
                f"{user} in a step with micro-batches",
                "model.compile(..., micro_batches=1)",
            )
        )


def _check(leaf):
    dense = isinstance(leaf, tf.Tensor) and leaf.dtype not in (tf.string, tf.variant, tf.resource)
    if not dense or leaf.shape.rank in (0, None):
        raise BatchError(
            message(
                "Only dense tensors of numbers, with rows, can be gathered from all replicas.",
                f"values={leaf!r}",
                "turn strings into numbers and ragged rows into padded ones in the dataset",
            )
        )


def _summable(leaf):
    return leaf if leaf.dtype.is_floating or leaf.dtype.is_complex else tf.cast(leaf, tf.int64)


def _among_zeros(values, rows, before, after):
    row_shape = tf.shape(values)[1:]

    def zeros(count):
        return tf.zeros(tf.concat([[count], row_shape], 0), values.dtype)

    return tf.concat([zeros(before), values[:rows], zeros(after)], axis=0)  # [:rows]: a stand-in row is cut off


def _summed(values: Sequence[tf.Tensor], model: keras.Model | None) -> list[tf.Tensor]:
    @tf.custom_gradient
    def all_sum(*parts: tf.Tensor) -> tuple[Any, Any]:
        with own_tensors_kept(model):
            totals = collective.all_sum(parts)

        def gradient(*cotangents: Any) -> list[Any]:
            # every replica has its share of dL/dtotal; together they are dL/dtotal
            with own_tensors_kept(model):
                return collective.all_sum([_dense(one) for one in cotangents])

        return totals, gradient

    return list(all_sum(*values))


def _dense(gradient):
    if isinstance(gradient, tf.IndexedSlices):
        return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, gradient.dense_shape[0])
    return gradient
