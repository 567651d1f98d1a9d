"""Every compiled loss as one term: a numerator and a denominator, both sums over this replica's elements."""

from typing import NamedTuple

import tensorflow as tf


class Term(NamedTuple):
    """One loss on one replica.

    Attributes:
        numerator: Scalar, the sum of loss * weight * mask over this replica's elements; for the
            reduction `None` a tensor of the loss's own shape, which is not reduced at all.
        denominator: Scalar, this replica's part of what the reduction divides by; `None` when it
            divides by nothing (`"sum"` and `None`).
        weight: Scalar, for a loss that is one number: the sum of weight * mask over this replica's elements, by
            whose mean over the global batch the number is multiplied; else `None`.
        weight_count: Scalar, this replica's part of what that mean divides by; `None` when it divides by nothing.
    """

    numerator: tf.Tensor
    denominator: tf.Tensor | None
    weight: tf.Tensor | None = None
    weight_count: tf.Tensor | None = None


def loss_term(
    values: tf.Tensor,
    *,
    sample_weight: tf.Tensor | None,
    mask: tf.Tensor | None,
    reduction: str | None,
    rows: tf.Tensor | int,
    has_rows: tf.Tensor | bool,
) -> Term:
    """Returns numerator and denominator of one loss, by the rules that Keras has for one replica.

    `sum_over_batch_size` and `mean` divide by the number of elements, or of unmasked elements where
    there is a mask; `mean_with_sample_weight` divides by sum(weight * mask); `sum` and `None` divide
    by nothing. A loss that returned one number already, or numbers that are not per row, is read as a mean over
    this replica's rows; weights and mask multiply the number of the global batch by their mean (or sum).

    Args:
        values: Loss per element, float, shape `(B, ...)`, or `()` for a loss that reduces by itself.
        sample_weight: Weight per row or per element, or `None`. Same dtype as `values`.
        mask: Keras mask of the prediction, 1 where an element counts, or `None`. Same dtype as `values`.
        reduction: The loss's `reduction`.
        rows: B, the rows on this replica; 0 gives numerator 0 and denominator 0.
        has_rows: Whether B > 0; `True` where that is known beforehand.

    Returns:
        The `Term`. It holds no NaN for B = 0.
    """
    weights = None
    if sample_weight is not None or mask is not None:
        weights = _merge(sample_weight, mask)
        if values.shape.rank == 0 and weights.shape.rank and reduction not in (None, "none"):
            return _weighted_number(values, weights, mask, reduction, rows, has_rows)
        values, weights = match_rank(values, weights)
        values = values * weights
    elif reduction not in (None, "none") and _has_no_rows(values, rows):
        values = tf.reduce_sum(values) if reduction == "sum" else tf.reduce_mean(values)
    if values.shape.rank == 0:
        count = tf.cast(rows, values.dtype)
        return Term(_only_with_rows(values, has_rows) * count, count)
    if reduction in (None, "none"):
        return Term(values, None)
    numerator = _only_with_rows(tf.reduce_sum(values), has_rows)
    if reduction == "sum":
        return Term(numerator, None)
    return Term(numerator, _only_with_rows(_denominator(values, weights, mask, reduction), has_rows))


def _weighted_number(value, weights, mask, reduction, rows, has_rows):
    # one replica multiplies its number by every weight: the mean over rows times the mean of the weights, and not
    # the mean of both, replica by replica
    count = tf.cast(rows, value.dtype)
    divisor = None if reduction == "sum" else _denominator(weights, weights, mask, reduction)
    return Term(
        _only_with_rows(value, has_rows) * count,
        count,
        _only_with_rows(tf.reduce_sum(weights), has_rows),
        None if divisor is None else _only_with_rows(divisor, has_rows),
    )


def _has_no_rows(values, rows):
    # a number of values that is known although that of the rows is not, or is another one
    count = values.shape[0] if values.shape.rank else None
    return count is not None and not (isinstance(rows, int) and count == rows)


def _denominator(values, weights, mask, reduction):
    elements = tf.cast(tf.size(values), values.dtype)
    if reduction == "mean_with_sample_weight":
        return elements if weights is None else tf.reduce_sum(weights)
    if mask is None:
        return elements
    # Keras scales a mask by (its size / its valid elements) and then divides by the number of
    # losses; mask and losses may differ in size by a constant factor per row.
    per_mask_element = tf.math.divide_no_nan(elements, tf.cast(tf.size(mask), values.dtype))
    return tf.reduce_sum(mask) * per_mask_element


def _merge(sample_weight, mask):
    if mask is None:
        return sample_weight
    if sample_weight is None:
        return mask
    mask, sample_weight = match_rank(mask, sample_weight)
    return sample_weight * mask


def _only_with_rows(value, has_rows):
    if has_rows is True:
        return value
    # for no rows, too, the result hangs on `value`: every replica must have gradients for the same variables
    return tf.where(has_rows, value, tf.zeros_like(value))


def match_rank(first: tf.Tensor, second: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Brings two tensors whose ranks differ by one to the same rank, as Keras does.

    A last dimension of 1 on the larger one is squeezed away; a vector is expanded to a column
    instead, so that `(B,)` meets `(B, 1)`.

    Args:
        first: Any tensor of known rank.
        second: Any tensor of known rank.

    Returns:
        Both tensors, unchanged unless the ranks differ by exactly one.
    """
    if first.shape.rank == second.shape.rank + 1 and first.shape[-1] == 1:
        if second.shape.rank == 1:
            return first, tf.expand_dims(second, -1)
        return tf.squeeze(first, -1), second
    if second.shape.rank == first.shape.rank + 1 and second.shape[-1] == 1:
        if first.shape.rank == 1:
            return tf.expand_dims(first, -1), second
        return first, tf.squeeze(second, -1)
    return first, second
