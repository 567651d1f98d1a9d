"""Count, mean and sum of squared deviations: per replica, and merged over replicas without cancellation."""

from collections.abc import Sequence

import tensorflow as tf


def of_replica(x: tf.Tensor, *, axes: Sequence[int], mask: tf.Tensor | None = None) -> tf.Tensor:
    """Returns n_r, mean_r and M2_r = sum (x - mean_r)^2 of one replica's values.

    Args:
        x: Float values.
        axes: The dimensions to sum over.
        mask: Bool, of the shape of `x`: whether a value counts; `None` counts all.

    Returns:
        Shape `(3, *kept)` with the dimensions that are not summed over, in the dtype of `x`; zeros where
        nothing counts.
    """
    if mask is None:
        kept = tf.reduce_sum(x, axis=axes)
        count = tf.fill(tf.shape(kept), tf.cast(tf.size(x) / tf.maximum(tf.size(kept), 1), x.dtype))
    else:
        kept = tf.reduce_sum(tf.where(mask, x, tf.zeros_like(x)), axis=axes)
        count = tf.reduce_sum(tf.cast(mask, x.dtype), axis=axes)
    mean = tf.math.divide_no_nan(kept, count)
    center = mean
    for axis in sorted(axis % x.shape.rank for axis in axes):
        center = tf.expand_dims(center, axis)
    deviations = x - center
    if mask is not None:
        deviations = tf.where(mask, deviations, tf.zeros_like(deviations))
    return tf.stack([count, mean, tf.reduce_sum(tf.square(deviations), axis=axes)])


def merged(parts: tf.Tensor, *, mean_is_constant: bool = False) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Merges the moments of replicas: N = sum n_r, mean = sum n_r mean_r / N, M2 = sum M2_r + n_r (mean_r - mean)^2.

    Nothing large is subtracted from anything large, so the result is sound in float32 for values of mean
    3000 and deviation 1, where E[x^2] - E[x]^2 has no correct digit. A part that counts nothing drops out.

    Args:
        parts: Shape `(R, 3, *kept)`, from `of_replica`.
        mean_is_constant: Take the mean as a constant in M2. Its first derivative is the same, as deviations
            add up to 0; the second is then that of `tf.nn.moments`, else the true one.

    Returns:
        N, mean and M2, each of shape `kept`; 0 where nothing counts on any replica.
    """
    counts, means, squares = tf.unstack(parts, num=3, axis=1)
    total = tf.reduce_sum(counts, axis=0)
    origin = tf.stop_gradient(means[0])  # differences from one of the means are small numbers
    mean = origin + tf.math.divide_no_nan(tf.reduce_sum(counts * (means - origin), axis=0), total)
    center = tf.stop_gradient(mean) if mean_is_constant else mean
    return total, mean, tf.reduce_sum(squares + counts * tf.square(means - center), axis=0)
