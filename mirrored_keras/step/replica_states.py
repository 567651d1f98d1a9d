"""One value for all replicas out of the values that a layer's variable has on each after a step."""

from collections.abc import Sequence

import tensorflow as tf


def combined(rule: str, values: Sequence[tf.Tensor], rows: Sequence[tf.Tensor]) -> tf.Tensor:
    """Combines the values of the replicas; those without rows do not count.

    With v_r on replica r, which has B_r of G rows:

    * "mean": sum_r (B_r / G) * v_r, exactly v where all replicas hold the same v;
    * "sum": sum_r v_r;
    * "first": v_0; the first replica always has rows.

    Args:
        rule: "mean", "sum" or "first".
        values: v_r, of any shape.
        rows: B_r, scalars.

    Returns:
        A tensor like each of the values; means of integers are rounded.
    """
    if rule == "first":
        return values[0]
    if rule == "sum":
        return tf.add_n([_where_rows(count, value) for value, count in zip(values, rows, strict=True)])
    dtype = values[0].dtype
    working = dtype if dtype.is_floating or dtype.is_complex else tf.float64
    global_rows = tf.add_n([tf.cast(count, working) for count in rows])
    first = tf.cast(values[0], working)
    mean = first
    for value, count in zip(values[1:], rows[1:], strict=True):
        share = tf.math.divide_no_nan(tf.cast(count, working), global_rows)
        mean += _where_rows(count, share * (tf.cast(value, working) - first))
    return tf.cast(mean if working == dtype else tf.round(mean), dtype)


def _where_rows(count, value):
    return tf.where(count > 0, value, tf.zeros_like(value))  # a replica without rows may hold NaN
