"""One Keras loss object as a numerator and a denominator on this replica."""

import weakref
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.errors import BatchError, message
from mirrored_keras.replica import private
from mirrored_keras.step.terms import Term, loss_term, match_rank

_TRIED: weakref.WeakKeyDictionary[keras.losses.Loss, set[str]] = weakref.WeakKeyDictionary()
_ROWS_TO_TRY = 7919  # a prime: hardly a number of columns


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
        BatchError: The weights do not fit the shape of the losses, or the targets fit the predictions by chance only.
    """
    if type(loss).__call__ is not keras.losses.Loss.__call__:
        value = tf.convert_to_tensor(loss(y_true, y_pred, sample_weight))
        return loss_term(value, sample_weight=None, mask=None, reduction=None, rows=rows, has_rows=has_rows)
    mask = private.get_keras_mask(y_pred)
    y_pred = keras.tree.map_structure(lambda part: _tensor(part, loss), y_pred)
    y_true = keras.tree.map_structure(lambda part: _tensor(part, loss), y_true)
    _check_targets(loss, y_true, y_pred)
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


def _check_targets(loss: keras.losses.Loss, y_true: Any, y_pred: Any) -> None:
    """Refuses targets whose rows would meet the columns of the predictions.

    One replica finds that 64 rows and 10 columns do not fit; a replica with as many rows as there are columns, or
    with one row, would broadcast them. So the loss is tried on a number of rows that is no number of columns.

    Args:
        loss: The loss.
        y_true: Targets of this replica.
        y_pred: Predictions.

    Raises:
        BatchError: The shapes fit by chance only.
    """
    tensors = [y_true, y_pred]
    shapes = str([getattr(t, "shape", None) and t.shape[1:] for t in tensors])
    if shapes in _TRIED.setdefault(loss, set()):
        return  # a step that is not traced comes here every time
    _TRIED[loss].add(shapes)
    if not isinstance(loss, private.LossFunctionWrapper) or not all(isinstance(t, tf.Tensor) for t in tensors):
        return
    if any(not t.shape.rank for t in tensors) or tensors[0].shape.rank == tensors[1].shape.rank:
        return
    with tf.Graph().as_default():
        many = [tf.compat.v1.placeholder(t.dtype, [_ROWS_TO_TRY, *t.shape[1:]]) for t in tensors]
        try:
            loss.call(*(_tensor(part, loss) for part in many))
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            if "must be equal" not in str(error) and "ncompatible shapes" not in str(error):
                return  # about something else than rows against columns
            _TRIED[loss].discard(shapes)
            raise BatchError(
                message(
                    "Targets and predictions have the same rows, and their other dimensions fit together.",
                    f"targets of shape {y_true.shape}, predictions of shape {y_pred.shape}, loss={loss.name!r}",
                    "compare model.output_shape with the shape of the targets; y[:, None] for one column",
                )
            ) from error


def _check_weight(loss, values, sample_weight):
    # a weight that broadcasts along another dimension than its own would meet other rows on every replica
    losses, weights = match_rank(values, sample_weight)
    pairs = zip(losses.shape, weights.shape, strict=False) if losses.shape.rank == weights.shape.rank else ((1, 2),)
    fits = all(None in (loss, weight) or weight in (1, loss) for loss, weight in pairs)
    if sample_weight.shape.rank and values.shape.rank and not fits:
        fewer = sample_weight.shape.rank < values.shape.rank
        fix = f"sample_weight[:{', None' * (values.shape.rank - 1)}]   # a weight per row"
        fix = fix if fewer else "sample_weight.mean(axis=-1)   # fewer dimensions than the losses have now"
        raise BatchError(
            message(
                "A sample weight counts for a row, or for an element of the loss: one weight per row needs as many "
                "dimensions as the loss has.",
                f"sample_weight of shape {sample_weight.shape} for the losses of {loss.name!r} of shape {values.shape}",
                f"{fix}, for losses of shape {values.shape}",
            )
        )


def _tensor(value, loss):
    return None if value is None else keras.ops.convert_to_tensor(value, dtype=loss.dtype)


def _both(first, second):
    if first is None or second is None:
        return second if first is None else first
    return first & second
