"""Checks and prepares what goes into fit, evaluate and predict, before anything runs."""

import types
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.errors import BatchError, message


def in_own_memory(data: Any) -> Any:
    """Copies the batch of a CPU replica, so that the arrays it came from can never be written to.

    A batch that Python code yields reaches a CPU replica without a copy, and a kernel that writes its
    result in place would write into the caller's array.

    Args:
        data: This replica's data, in replica context.

    Returns:
        The same values; on other devices the same tensors.
    """
    device = tf.distribute.get_strategy().extended.worker_devices[0]
    if "CPU" not in device.upper():
        return data
    return keras.tree.map_structure(_copied, data)


def _copied(leaf):
    if isinstance(leaf, tf.Tensor):
        return tf.raw_ops.DeepCopy(x=leaf)
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.with_flat_values(tf.raw_ops.DeepCopy(x=leaf.flat_values))
    if isinstance(leaf, tf.SparseTensor):
        return tf.SparseTensor(leaf.indices, tf.raw_ops.DeepCopy(x=leaf.values), leaf.dense_shape)
    return leaf


def check_rows(data: Any) -> None:
    """Refuses features, targets and weights with different numbers of rows, where these are known.

    Args:
        data: One replica's data.

    Raises:
        BatchError: Two parts have different static row counts.
    """
    leaves = [leaf for leaf in keras.tree.flatten(data) if getattr(leaf, "shape", None) is not None]
    rows = [leaf.shape[0] for leaf in leaves if leaf.shape.rank]
    if len({count for count in rows if count is not None}) > 1:
        raise BatchError(
            message(
                "Features, targets and weights of a batch must have the same number of rows.",
                f"rows on one replica={rows} (x, y, sample_weight flattened)",
                "tf.data.Dataset.zip((features, targets)).batch(64)   # zip single rows, then batch",
            )
        )


def without_trailing_none(data: Any) -> Any:
    """Drops missing targets or weights at the end of a dataset's or generator's elements.

    `(x, y, None)` means `(x, y)`; a dataset cannot be shared out to replicas with a `None` in it.

    Args:
        data: What was given as `x` or `validation_data`; anything but datasets and generators comes back.

    Returns:
        The same data, without the `None`.
    """
    if isinstance(data, types.GeneratorType):
        return (_stripped(element, lambda part: part is None) for element in data)
    if isinstance(data, tf.data.Dataset) and isinstance(data.element_spec, tuple):
        kept = len(_stripped(data.element_spec, lambda spec: type(spec).__name__ == "NoneTensorSpec"))
        if 0 < kept < len(data.element_spec):
            return data.map(lambda *element: element[:kept])
    return data


def _stripped(element, is_missing):
    if not isinstance(element, tuple):
        return element
    kept = len(element)
    while kept > 1 and is_missing(element[kept - 1]):
        kept -= 1
    return element[:kept]


def none_for_empty_optionals(data: Any) -> Any:
    """Turns the optionals by which datasets of Python data spell `None` back into `None`.

    Args:
        data: An element of a dataset.

    Returns:
        The same structure.
    """
    return keras.tree.map_structure(lambda part: None if isinstance(part, tf.experimental.Optional) else part, data)


def go_with(data: Any) -> tf.Tensor:
    """Returns a number that is there once every tensor of a batch is.

    Args:
        data: The batch.

    Returns:
        A scalar, which a step can wait for.
    """
    drawn = [part for part in tf.nest.flatten(data, expand_composites=True) if tf.is_tensor(part)]
    with tf.control_dependencies(drawn):
        return tf.identity(tf.constant(0))


def check_batch_size(name: str, value: Any) -> None:
    """Refuses a batch size that is no positive whole number.

    Args:
        name: The argument's name.
        value: The argument.

    Raises:
        BatchError: `value` is neither `None` nor a positive integer.
    """
    if value is None:
        return
    whole = isinstance(value, int) or (hasattr(value, "dtype") and tf.as_dtype(value.dtype).is_integer)
    if isinstance(value, bool) or not whole or int(value) < 1:
        raise BatchError(
            message(
                f"`{name}` is the number of rows of the global batch, over all replicas: a positive integer.",
                f"{name}={value!r} (of type {type(value).__name__})",
                f"model.fit(x, y, {name}=64)",
            )
        )


def check_dataset(data: Any) -> None:
    """Refuses a dataset whose elements have no first dimension to split along.

    Args:
        data: What was given as `x` or `validation_data`; anything but a `tf.data.Dataset` passes.

    Raises:
        BatchError: A component has an unknown rank, or none is a batch.
    """
    if not isinstance(data, tf.data.Dataset):
        return
    specs = [spec for spec in keras.tree.flatten(data.element_spec) if hasattr(spec, "shape")]
    if any(tf.TensorShape(spec.shape).rank == 0 for spec in specs):
        raise BatchError(
            message(
                "The elements of a dataset must be batches: every tensor needs a first dimension, its rows.",
                f"element_spec={data.element_spec}",
                "dataset.batch(64)",
            )
        )
    if any(tf.TensorShape(spec.shape).rank is None for spec in specs):
        raise BatchError(
            message(
                "Every tensor of a dataset needs a known rank, so that its rows can be shared out to replicas.",
                f"element_spec={data.element_spec}",
                "tf.data.Dataset.from_generator(f, output_signature=(tf.TensorSpec((None, 5)), "
                "tf.TensorSpec((None, 1)))), "
                "or dataset.map(lambda x, y: (tf.ensure_shape(x, (None, 5)), tf.ensure_shape(y, (None, 1))))",
            )
        )
