"""One Keras loss object as a numerator and a denominator on this replica."""

from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.replica import private
from mirrored_keras.step.terms import Term, loss_term


def term_of(
    loss: keras.losses.Loss, y_true: Any, y_pred: Any, sample_weight: Any = None, *, rows: tf.Tensor | int
) -> Term:
    """Returns the term of a loss: what Keras computes on one replica, before it divides.

    Args:
        loss: Any `keras.losses.Loss`. Where one replaces `__call__` itself, a number is read as a mean over
            rows, and anything else as an unreduced loss.
        y_true: Targets of this replica.
        y_pred: Predictions, the mask riding on them.
        sample_weight: Weight per row or element, or `None`.
        rows: B.

    Returns:
        The `Term`; zeros for B = 0.
    """
    if type(loss).__call__ is not keras.losses.Loss.__call__:
        value = tf.convert_to_tensor(loss(y_true, y_pred, sample_weight))
        return loss_term(value, sample_weight=None, mask=None, reduction=None, rows=rows)
    mask = private.get_keras_mask(y_pred)
    y_pred = keras.tree.map_structure(lambda part: _tensor(part, loss), y_pred)
    y_true = keras.tree.map_structure(lambda part: _tensor(part, loss), y_true)
    values = loss.call(y_true, y_pred)
    mask = _both(mask, private.get_keras_mask(values))
    return loss_term(
        _tensor(values, loss),
        sample_weight=_tensor(sample_weight, loss),
        mask=_tensor(mask, loss),
        reduction=loss.reduction,
        rows=rows,
    )


def _tensor(value, loss):
    return None if value is None else keras.ops.convert_to_tensor(value, dtype=loss.dtype)


def _both(first, second):
    if first is None or second is None:
        return second if first is None else first
    return first & second
