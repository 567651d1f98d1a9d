"""Checks and prepares what goes into fit, evaluate and predict, before anything runs."""

import types
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras.errors import BatchError, message
from mirrored_keras.replica.rows import first_leaf, rows_of


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
        kept = len(_stripped(data.element_spec, lambda spec: isinstance(spec, tf.NoneTensorSpec)))
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


def stand_ins_for_none(*element: Any) -> Any:
    """Puts a tensor in for every `None` of a dataset's element; `none_for_missing` turns it back.

    It has the rows of the others and no columns: `tf.distribute` shares out nothing but tensors.

    Args:
        *element: An element of a dataset.

    Returns:
        The element, for `dataset.map`.
    """
    rows = rows_of(first_leaf(element))
    kept = keras.tree.map_structure(lambda part: tf.zeros([rows, 0], tf.bool) if part is None else part, element)
    return kept if len(kept) > 1 else kept[0]


def none_for_missing(data: Any) -> Any:
    """Turns back into `None` what stands for it in datasets: empty optionals, and `stand_ins_for_none`.

    Args:
        data: An element of a dataset, or of its replicas.

    Returns:
        The same structure.
    """
    return keras.tree.map_structure(lambda part: None if stands_for_none(part) else part, data)


def stands_for_none(part: Any) -> bool:
    """Returns whether a tensor, optional or spec of a dataset spells `None`.

    Args:
        part: A leaf of a dataset's element or element spec.
    """
    if isinstance(part, tf.distribute.DistributedValues):
        part = part.values[0]
    if part is None or isinstance(part, (tf.NoneTensorSpec, tf.OptionalSpec, tf.experimental.Optional)):
        return True
    shape = tf.TensorShape(getattr(part, "shape", None))
    return shape.rank == 2 and shape[1] == 0 and part.dtype == tf.bool


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


def check_not_masked(name: str, data: Any) -> None:
    """Refuses NumPy's masked arrays, of which TensorFlow takes the values under the mask too.

    Args:
        name: The argument's name.
        data: The argument.

    Raises:
        BatchError: There is a masked array with a masked value in it.
    """
    if isinstance(data, (tf.data.Dataset, types.GeneratorType)):
        return
    for part in keras.tree.flatten(data):
        if isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part):
            raise BatchError(
                message(
                    "Arrays have no mask of their own: what counts is said by sample weights, or by a layer `Masking`.",
                    f"{name}=a masked array of shape {part.shape} with {int(np.ma.count_masked(part))} masked values",
                    "x = x.filled(0.0); model.fit(x, y, sample_weight=...)",
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
    specs = {
        path: tf.TensorShape(spec.shape)
        for path, spec in keras.tree.flatten_with_path(data.element_spec)
        if hasattr(spec, "shape")
    }
    if any(shape.rank == 0 for shape in specs.values()):
        raise BatchError(
            message(
                "The elements of a dataset must be batches: every tensor needs a first dimension, its rows.",
                f"element_spec={data.element_spec}",
                "dataset.batch(64)",
            )
        )
    unknown = [_name_in_element(path, data.element_spec) for path, shape in specs.items() if shape.rank is None]
    if unknown:
        lines = "; ".join(f"{name} = tf.ensure_shape({name}, (None, 5))" for name in unknown)
        raise BatchError(
            message(
                "Every tensor of a dataset needs a known rank, so that its rows can be shared out to replicas.",
                f"unknown rank of {', '.join(unknown)}; element_spec={data.element_spec}",
                f"{lines} in the function given to dataset.map, with None for the rows; or "
                "from_generator(f, output_signature=(tf.TensorSpec((None, 5)), tf.TensorSpec((None, 1))))",
            )
        )


def _name_in_element(path, element):
    """Returns how a tensor of a dataset's element is written in a function of `x, y, sample_weight`."""
    names = ("x", "y", "sample_weight")
    if isinstance(element, tuple) and len(element) <= len(names):
        name, path = names[path[0]], path[1:]
    else:
        name = "x"
    return name + "".join(f"[{key!r}]" for key in path)
