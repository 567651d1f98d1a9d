"""`class_weight` inside the step, for datasets that can no longer be mapped."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.errors import BatchError, message


def class_weight_map(class_weight: Mapping[int, float]) -> Callable[..., tuple[Any, Any, tf.Tensor]]:
    """Returns a function that turns class weights into sample weights.

    Row i gets `class_weight[class of y_i]`, and 1 for a class that is not named. The class is the largest
    of several columns, or the rounded value of one column or of a vector.

    Args:
        class_weight: Class number (>= 0) to weight.

    Returns:
        A function of `x, y` that returns `(x, y, sample_weight)`, float weights of shape `(B,)`.

    Raises:
        BatchError: A class is negative; from the function: there are sample weights already, or several targets.

    Example:
        >>> import tensorflow as tf
        >>> from mirrored_keras.class_weights import class_weight_map
        >>> class_weight_map({1: 5.0})(tf.zeros((3, 1)), tf.constant([0, 1, 7]))[2].numpy().tolist()
        [1.0, 5.0, 1.0]
    """
    if min(class_weight) < 0:
        raise BatchError(
            message(
                "Classes are numbers from 0 on.", f"class_weight={dict(class_weight)}", "class_weight={0: 1.0, 1: 5.0}"
            )
        )
    table = [float(class_weight.get(c, 1.0)) for c in range(max(class_weight) + 1)]

    def weighted(*data: Any) -> tuple[Any, Any, tf.Tensor]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if sample_weight is not None or keras.tree.is_nested(y):
            raise BatchError(
                message(
                    "`class_weight` needs one target and no sample weights.",
                    f"sample_weight={sample_weight}, y={y}",
                    "put the class weights into the dataset's sample weights: (x, y, sample_weight)",
                )
            )
        classes = _classes(y)
        known = tf.logical_and(classes >= 0, classes < len(table))
        weights = tf.gather(tf.constant(table, keras.config.floatx()), tf.where(known, classes, 0))
        return x, y, tf.where(known, weights, tf.ones_like(weights))

    return weighted


def _classes(y):
    if y.shape.rank is not None and y.shape.rank >= 2:
        if y.shape[-1] == 1:
            y = tf.squeeze(y, -1)
        else:
            return tf.argmax(y, axis=-1, output_type=tf.int32)
    return tf.cast(tf.round(y) if y.dtype.is_floating else y, tf.int32)
