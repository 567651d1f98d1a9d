"""Builds a model, its metrics, losses and optimizer from the shapes of the data, drawing no batch."""

import re
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.errors import BatchError, message
from mirrored_keras.replica import feeding, private

_ABOUT_SHAPES = re.compile(r"shape|structure|dimension|rank|incompatible|axis|elements", re.IGNORECASE)


def build(model: keras.Model, spec: Any) -> None:
    """Builds what is not built yet: model, metrics, losses, optimizer; tries the losses on data of new shapes.

    Args:
        model: A compiled model; it is built in the scope of its strategy.
        spec: Specs, tensors or arrays of one batch.

    Raises:
        BatchError: Model, losses or metrics cannot take data of these shapes.
    """
    specs = specs_of(spec)
    met_other_data = private.losses_are_built(model) and not model.has_own_train_step
    try:
        with model.distribute_strategy.scope():
            private.build_from_specs(model, specs)
            if met_other_data and _short(specs) not in model.seen_data_shapes:
                private.run_on_specs(model, specs)
        if _short(specs) not in model.seen_data_shapes:
            model.seen_data_shapes = (*model.seen_data_shapes, _short(specs))
    except (ValueError, TypeError, RuntimeError, tf.errors.OpError) as error:
        if model.has_own_train_step and "None values not supported" in str(error):
            return  # no targets: the step of a subclass need not use the compiled loss or metrics
        if not _ABOUT_SHAPES.search(str(error)):
            raise
        raise BatchError(
            message(
                f"Model, losses and metrics must take the data's shapes. {_first_line(error)}",
                f"data={_short(specs)}, outputs={_short(getattr(model, 'outputs', None))}",
                "dataset.batch(64) if its elements are single rows; else compare model.input_shape and "
                "model.output_shape with the data",
            )
        ) from error


def _first_line(error):
    # Keras wraps the cause in a headline and bold escapes
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith("Exception encountered")]
    return lines[0] if lines else type(error).__name__


def _short(structure):
    described = keras.tree.map_structure(
        lambda leaf: None if leaf is None else f"{tf.as_dtype(leaf.dtype).name}{tuple(leaf.shape)}", structure
    )
    return str(described).replace("'", "")


def specs_of(data: Any) -> Any:
    """Turns element specs or arrays into specs whose first dimension is open.

    Args:
        data: A structure of specs, tensors or arrays; what stands for `None` becomes `None`.

    Returns:
        The same structure with leaves `tf.TensorSpec`, `tf.RaggedTensorSpec` and `tf.SparseTensorSpec`.
    """
    return keras.tree.map_structure(_spec_of, data)


def _spec_of(leaf):
    if feeding.stands_for_none(leaf):
        return None
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
        leaf = tf.type_spec_from_value(leaf)
    shape = getattr(leaf, "shape", None)
    if shape is None or not hasattr(leaf, "dtype"):
        leaf = tf.convert_to_tensor(leaf)
        shape = leaf.shape
    shape = tf.TensorShape(shape)
    if shape.rank:
        shape = tf.TensorShape([None]).concatenate(shape[1:])
    if isinstance(leaf, tf.SparseTensorSpec):
        return tf.SparseTensorSpec(shape, leaf.dtype)
    if isinstance(leaf, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, leaf.dtype, leaf.ragged_rank, leaf.row_splits_dtype)
    return tf.TensorSpec(shape, tf.as_dtype(leaf.dtype))
