"""Checks and prepares what goes into fit, evaluate and predict, before anything runs."""

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
    if any(tf.TensorShape(spec.shape).rank is None for spec in specs):
        raise BatchError(
            message(
                "Every tensor of a dataset needs a known rank, so that its rows can be shared out to replicas.",
                f"element_spec={data.element_spec}",
                "tf.data.Dataset.from_generator(f, output_signature=(tf.TensorSpec((None, 5)), tf.TensorSpec((None, 1)))), "
                "or dataset.map(lambda x, y: (tf.ensure_shape(x, (None, 5)), tf.ensure_shape(y, (None, 1))))",
            )
        )
