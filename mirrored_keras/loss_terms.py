"""One Keras loss object as a numerator and a denominator on this replica."""

from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.errors import BatchError, message
from mirrored_keras.replica import private
from mirrored_keras.step.terms import Term, loss_term, match_rank


def term_of(
    loss: keras.losses.Loss,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any = None,
    *,
    rows: tf.Tensor | int,
    has_rows: tf.Tensor | bool,
) -> Term:
    """Returns the term of a loss: what Keras computes on one replica, before it divides.

    Args:
        loss: Any `keras.losses.Loss`. Where one replaces `__call__` itself, a number is read as a mean over
            rows, and anything else as an unreduced loss.
        y_true: Targets of this replica.
        y_pred: Predictions, the mask riding on them.
        sample_weight: Weight per row or element, or `None`.
        rows: B.
        has_rows: Whether B > 0; `True` where that is known beforehand.

    Returns:
        The `Term`; zeros for B = 0.

    Raises:
        BatchError: The weights do not fit the shape of the losses.
    """
    if type(loss).__call__ is not keras.losses.Loss.__call__:
        value = tf.convert_to_tensor(loss(y_true, y_pred, sample_weight))
        return loss_term(value, sample_weight=None, mask=None, reduction=None, rows=rows, has_rows=has_rows)
    mask = private.get_keras_mask(y_pred)
    y_pred = keras.tree.map_structure(lambda part: _tensor(part, loss), y_pred)
    y_true = keras.tree.map_structure(lambda part: _tensor(part, loss), y_true)
    values = loss.call(y_true, y_pred)
    mask = _both(mask, private.get_keras_mask(values))
    values, sample_weight = _tensor(values, loss), _tensor(sample_weight, loss)
    if sample_weight is not None:
        _check_weight(loss, values, sample_weight)
    return loss_term(
        values,
        sample_weight=sample_weight,
        mask=_tensor(mask, loss),
        reduction=loss.reduction,
        rows=rows,
        has_rows=has_rows,
    )


def _check_weight(loss, values, sample_weight):
    # a weight that broadcasts along another dimension than its own would meet other rows on every replica
    losses, weights = match_rank(values, sample_weight)
    pairs = zip(losses.shape, weights.shape, strict=False) if losses.shape.rank == weights.shape.rank else ((1, 2),)
    fits = all(None in (loss, weight) or weight in (1, loss) for loss, weight in pairs)
    if sample_weight.shape.rank and values.shape.rank and not fits:
        ones = ", None" * (values.shape.rank - 1)
        raise BatchError(
            message(
                "A sample weight counts for a row, or for an element of the loss: one weight per row needs as many "
                "dimensions as the loss has.",
                f"sample_weight of shape {sample_weight.shape} for the losses of {loss.name!r} of shape {values.shape}",
                f"sample_weight[:{ones}]   # a weight per row, for losses of shape {values.shape}",
            )
        )


def _tensor(value, loss):
    return None if value is None else keras.ops.convert_to_tensor(value, dtype=loss.dtype)


def _both(first, second):
    if first is None or second is None:
        return second if first is None else first
    return first & second
