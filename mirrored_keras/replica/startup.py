"""Builds a model, its metrics, losses and optimizer from the shapes of the data, drawing no batch."""

from typing import Any

import keras
import tensorflow as tf


def shapes_of(spec: Any) -> Any:
    """Turns element specs or arrays into objects with `shape` and `dtype`; the first dimension is open.

    Args:
        spec: A structure of specs, tensors or arrays; `None` and empty optionals stay `None`.

    Returns:
        The same structure with `tf.TensorSpec` leaves.
    """
    return keras.tree.map_structure(_shape_of, spec)


def _shape_of(leaf):
    if leaf is None or type(leaf).__name__ in ("NoneTensorSpec", "OptionalSpec"):
        return None
    shape = getattr(leaf, "shape", None)
    if shape is None or not hasattr(leaf, "dtype"):
        leaf = tf.convert_to_tensor(leaf)
        shape = leaf.shape
    shape = tf.TensorShape(shape)
    if shape.rank:
        shape = tf.TensorShape([None]).concatenate(shape[1:])
    return tf.TensorSpec(shape, tf.as_dtype(leaf.dtype))
