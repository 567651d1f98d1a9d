"""Builds a model, its metrics, losses and optimizer from the shapes of the data, drawing no batch."""

from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.errors import BatchError, message


def build(model: keras.Model, spec: Any) -> None:
    """Builds what is not built yet: model, metrics, losses, optimizer.

    Args:
        model: A compiled model, inside its strategy's scope.
        spec: Specs, tensors or arrays of one batch.

    Raises:
        BatchError: Model, losses or metrics cannot take data of these shapes.
    """
    shapes = shapes_of(spec)
    try:
        model._symbolic_build(data_batch=shapes)
    except (ValueError, TypeError, RuntimeError, tf.errors.OpError) as error:
        raise BatchError(
            message(
                f"Model, losses and metrics must take the data's shapes. {_first_line(error)}",
                f"data={_short(shapes)}, outputs={_short(getattr(model, 'outputs', None))}",
                "model(x[:1]) and model.compute_loss(y=y[:1], y_pred=model(x[:1])) on one row show where it stops",
            )
        ) from error


def _first_line(error):
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _short(structure):
    described = keras.tree.map_structure(
        lambda leaf: None if leaf is None else f"{tf.as_dtype(leaf.dtype).name}{tuple(leaf.shape)}", structure
    )
    return str(described).replace("'", "")


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
