"""Every logged number is a total and a count, summed over replicas when it is read."""

from collections.abc import Sequence

import tensorflow as tf


def pack(values: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
    """Packs tensors into one flat vector per dtype, so that few values cross devices.

    Args:
        values: Tensors of any shape and dtype.

    Returns:
        dtype name -> vector.
    """
    by_dtype: dict[str, list[tf.Tensor]] = {}
    for value in values:
        by_dtype.setdefault(value.dtype.name, []).append(value)
    return {name: _join(group) for name, group in by_dtype.items()}


def _join(group):
    if all(value.shape.rank == 0 for value in group):
        return tf.stack(group)
    return tf.concat([tf.reshape(value, [-1]) for value in group], axis=0)


def unpack(packed: dict[str, tf.Tensor], like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Undoes `pack`.

    Args:
        packed: What `pack` returned, or a sum of such.
        like: Tensors (or specs) with the static shapes and dtypes of the packed ones.

    Returns:
        The tensors, in the order of `like`.
    """
    by_dtype: dict[str, list] = {}
    for value in like:
        by_dtype.setdefault(tf.as_dtype(value.dtype).name, []).append(value)
    queues = {name: _split(packed[name], group) for name, group in by_dtype.items()}
    return [queues[tf.as_dtype(value.dtype).name].pop(0) for value in like]


def _split(vector, group):
    if all(value.shape.rank == 0 for value in group):
        return tf.unstack(vector, num=len(group))
    sizes = [value.shape.num_elements() for value in group]
    return [tf.reshape(part, value.shape) for part, value in zip(tf.split(vector, sizes), group, strict=True)]


def rows_of_replicas(values: Sequence[tf.Tensor], rows: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns values per row of all replicas one after the other, without those of replicas without rows.

    Args:
        values: One tensor per replica, its first dimension that replica's rows (one that stands in for none).
        rows: B of each replica.

    Returns:
        The values of the global batch.
    """
    kept = [tf.where(count > 0, tf.shape(value)[0], 0) for value, count in zip(values, rows, strict=True)]
    return tf.concat([value[:count] for value, count in zip(values, kept, strict=True)], axis=0)


def mean_of_replicas(values: Sequence[tf.Tensor], rows: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns sum_r B_r * value_r / sum_r B_r, leaving out replicas without rows.

    Args:
        values: One tensor per replica, a mean over that replica's rows.
        rows: B of each replica.

    Returns:
        The mean over the rows of the global batch; values that are no floats are averaged in
        float32 and cast back.
    """
    dtype = values[0].dtype
    working = dtype if dtype.is_floating or dtype.is_complex else tf.float32
    total = tf.zeros((), working)
    count = tf.zeros((), working)
    for value, row_count in zip(values, rows, strict=True):
        weight = tf.cast(row_count, working)
        value = tf.cast(value, working)
        total += tf.where(row_count > 0, value * weight, tf.zeros_like(value))
        count += weight
    return tf.cast(tf.math.divide_no_nan(total, count), dtype)
