"""From terms and row counts to this replica's share of the loss of the global batch."""

from collections.abc import Sequence

import tensorflow as tf

from mirrored_keras.step.terms import Term


def sums_needed(terms: Sequence[Term]) -> list[tf.Tensor | None]:
    """Returns what must be summed over the replicas before `mean_over_rows`, without gradients.

    Args:
        terms: One `Term` per loss.

    Returns:
        Three scalars, or `None`, per term.
    """
    parts = [part for term in terms for part in term[1:]]
    return [None if part is None else tf.stop_gradient(part) for part in parts]


def mean_over_rows(
    terms: Sequence[Term],
    sums: Sequence[tf.Tensor | None],
    *,
    rows: tf.Tensor | int,
    global_rows: tf.Tensor | int,
    dtype: str,
) -> list[tf.Tensor]:
    """Returns each loss in "mean of this replica's rows" units: L_r = (G / B) * n / D, for one number times W / C.

    These are the units in which sum_r (B / G) * L_r is the loss of one replica on the global batch,
    so that a mean over the rows, or a penalty on weights, may be added to them as it is.

    Args:
        terms: One `Term` per loss.
        sums: D, W and C of each loss: `sums_needed`, summed over the replicas.
        rows: B of this replica; 0 gives 0.
        global_rows: G.
        dtype: The dtype of the losses handed back.

    Returns:
        One tensor per loss, scalar unless its term is a vector.
    """
    results = []
    for index, term in enumerate(terms):
        value = term.numerator
        denominator, weight, weight_count = sums[3 * index : 3 * index + 3]
        if weight is not None:
            value = value * tf.cast(weight, value.dtype)
        for divisor in (denominator, weight_count):
            if divisor is not None:
                value = tf.math.divide_no_nan(value, tf.cast(divisor, value.dtype))
        results.append(tf.cast(value * rows_ratio(global_rows, rows, value.dtype), dtype))
    return results


def total_over_losses(
    values: Sequence[tf.Tensor],
    *,
    rows: tf.Tensor | int,
    global_rows: tf.Tensor | int,
) -> tf.Tensor:
    """Adds the losses of all outputs as one replica does, where a number meets a vector too.

    On one replica a scalar added to an unreduced loss of N elements is broadcast, and the gradient
    of that vector is the gradient of its sum: the scalar counts once per element of the global batch.

    Args:
        values: The losses from `mean_over_rows`.
        rows: B.
        global_rows: G.

    Returns:
        The sum, a vector if any of `values` is one.
    """
    if all(value.shape.rank == 0 for value in values):
        return values[0] if len(values) == 1 else tf.add_n(list(values))
    ratio = rows_ratio(global_rows, rows, values[0].dtype)
    total = None
    for value in values:
        value = value * ratio if value.shape.rank == 0 else value
        total = value if total is None else total + value
    return total


def share_of_global_loss(
    loss: tf.Tensor, *, rows: tf.Tensor | int, global_rows: tf.Tensor | int, has_rows: tf.Tensor | bool
) -> tf.Tensor:
    """Returns this replica's share (B / G) * L_r of the loss of the global batch; 0 for B = 0.

    Args:
        loss: L_r, a mean over this replica's rows, any shape.
        rows: B.
        global_rows: G.
        has_rows: Whether B > 0; `True` where that is known beforehand.

    Returns:
        Same shape and dtype as `loss`. Summed over the replicas it is the loss of one replica.
    """
    share = loss * rows_ratio(rows, global_rows, loss.dtype)
    return share if has_rows is True else tf.where(has_rows, share, tf.zeros_like(share))


def rows_ratio(numerator: tf.Tensor | int, denominator: tf.Tensor | int, dtype: tf.DType) -> tf.Tensor:
    """Returns numerator / denominator of two row counts; 0 where the denominator is 0.

    Args:
        numerator: Rows.
        denominator: Rows.
        dtype: Float dtype of the result.

    Returns:
        A scalar.
    """
    return tf.math.divide_no_nan(tf.cast(numerator, dtype), tf.cast(denominator, dtype))
