"""Counts the rows of a batch: the first dimension of its first tensor."""

from typing import Any

import keras
import tensorflow as tf


def rows_of(value: Any) -> tf.Tensor | int:
    """Returns the number of rows of a tensor: an int when it is known statically, else a scalar int32.

    Args:
        value: A dense, ragged or sparse tensor; a scalar counts as one row.

    Returns:
        B.
    """
    if isinstance(value, tf.RaggedTensor):
        return tf.cast(value.nrows(), tf.int32)
    if isinstance(value, tf.SparseTensor):
        return tf.cast(value.dense_shape[0], tf.int32)
    if not hasattr(value, "shape"):
        value = tf.convert_to_tensor(value)
    if len(value.shape) == 0:
        return 1
    static = value.shape[0]
    return int(static) if static is not None else tf.shape(value)[0]


def first_leaf(data: Any) -> Any:
    """Returns the first tensor of a structure, by whose first dimension rows are counted.

    Args:
        data: A tensor or a structure of tensors; `None` parts are skipped.

    Returns:
        The tensor.

    Raises:
        ValueError: There is none.
    """
    for leaf in keras.tree.flatten(data):
        if leaf is not None:
            return leaf
    raise ValueError("A batch needs at least one tensor to count its rows by. Received: no tensor")
