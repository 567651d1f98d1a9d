"""A row of zeros for a replica without rows, so that no kernel ever meets an empty batch.

Some kernels refuse an empty batch, some return wrong shapes or abort the process (convolutions of oneDNN),
and some leave their result uninitialised. A replica without rows therefore runs on one row of zeros that
counts for nothing: B stays 0, so terms, share and gradients are those of no rows, and what the row did to
metrics and to the states of layers is undone.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.replica import private, workers

_WITH_ROWS = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)


def applies_to(model: keras.Model, data: Any) -> bool:
    """Returns whether a row of zeros may stand in for no rows: every tensor has rows.

    Args:
        model: The model.
        data: The data of all replicas.

    Returns:
        Whether `filled` can be used.
    """
    local = model.distribute_strategy.experimental_local_results
    leaves = [local(leaf)[0] for leaf in keras.tree.flatten(data) if leaf is not None]
    return all(isinstance(leaf, _WITH_ROWS) and leaf.shape.rank for leaf in leaves)


def row_shapes(strategy: tf.distribute.Strategy, data: Any) -> list[Any]:
    """Returns the shape of one row of every tensor, taken from the first replica, which has rows or knows the shape.

    Args:
        strategy: The strategy.
        data: The data of all replicas.

    Returns:
        One int32 vector per tensor, in flattened order; for a ragged one that of an innermost element.
    """
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
    shapes = [row_shape(strategy.experimental_local_results(leaf)[0]) for leaf in leaves]
    if workers.are_several(strategy):
        # where a worker has run out of data TensorFlow puts in tensors of size 0 in every open dimension
        return [tf.maximum(shape, 1) for shape in shapes]
    return shapes


def row_shape(leaf: Any) -> tf.Tensor:
    """Returns the shape of one row, as `filled` needs it.

    Args:
        leaf: A dense, sparse or ragged tensor.

    Returns:
        An int32 vector; for a ragged tensor the shape of an innermost element.
    """
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[1:], tf.int32)
    # of a ragged tensor one row of one element, which may have inner dimensions of its own
    return tf.shape(leaf.flat_values if isinstance(leaf, tf.RaggedTensor) else leaf)[1:]


def filled(data: Any, rows: tf.Tensor | int, shapes: Sequence[Any]) -> Any:
    """Returns the data with one row of zeros if there is none, else the data.

    Args:
        data: One replica's data.
        rows: B.
        shapes: From `row_shapes`.

    Returns:
        The same structure.
    """
    if isinstance(rows, int) and rows > 0:
        return data
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]

    def rows_of_zeros():
        return [_row_of_zeros(leaf, shape) for leaf, shape in zip(leaves, shapes, strict=True)]

    if isinstance(rows, int):
        chosen = rows_of_zeros()
    else:
        parts = tf.cond(
            rows > 0,
            lambda: [[tf.identity(part) for part in _parts(leaf)] for leaf in leaves],
            lambda: [_parts(row) for row in rows_of_zeros()],
        )
        chosen = [_made_of(leaf, leaf_parts) for leaf, leaf_parts in zip(leaves, parts, strict=True)]
    found = iter(map(_with_static_shape, chosen, leaves))
    return keras.tree.map_structure(lambda leaf: None if leaf is None else next(found), data)


def _parts(leaf):
    if isinstance(leaf, tf.RaggedTensor):
        return [leaf.flat_values, *leaf.nested_row_splits]
    return [leaf.indices, leaf.values, leaf.dense_shape] if isinstance(leaf, tf.SparseTensor) else [leaf]


def _made_of(leaf, parts):
    # not packed by the leaf's type, which may say that it has no rows
    if isinstance(leaf, tf.RaggedTensor):
        return tf.RaggedTensor.from_nested_row_splits(parts[0], parts[1:], validate=False)
    return tf.SparseTensor(*parts) if isinstance(leaf, tf.SparseTensor) else parts[0]


def _row_of_zeros(leaf, shape):
    if isinstance(leaf, tf.SparseTensor):
        shape = tf.cast(tf.concat([[1], shape], 0), tf.int64)
        return tf.SparseTensor(tf.zeros([0, leaf.shape.rank], tf.int64), tf.zeros([0], leaf.dtype), shape)
    zeros = tf.zeros(tf.concat([[1], shape], 0), leaf.dtype)
    if not isinstance(leaf, tf.RaggedTensor):
        return zeros
    splits = tf.constant([0, 1], leaf.row_splits.dtype)
    return tf.RaggedTensor.from_nested_row_splits(zeros, [splits] * leaf.ragged_rank)


def _with_static_shape(chosen, leaf):
    return tf.ensure_shape(chosen, [None, *leaf.shape[1:]]) if isinstance(leaf, tf.Tensor) else chosen


def states_of(variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
    """Returns this replica's values of metric variables and layer states.

    Args:
        variables: The variables.

    Returns:
        Their values, for `restored`.
    """
    return [tf.identity(private.local_copy(variable)) for variable in variables]


def restored(variables: Sequence[keras.Variable], values: Sequence[tf.Tensor], rows: tf.Tensor | int) -> None:
    """Puts the values back on a replica without rows.

    Args:
        variables: The variables.
        values: From `states_of`, before the step.
        rows: B; nothing happens on a replica with rows.
    """
    if not variables or (isinstance(rows, int) and rows > 0):
        return

    def put_back():
        for variable, value in zip(variables, values, strict=True):
            private.local_copy(variable).assign(value)
        return tf.constant(True)

    if isinstance(rows, int):
        put_back()
    else:
        tf.cond(rows > 0, lambda: tf.constant(False), put_back)


def first_rows(outputs: Any, rows: tf.Tensor | int) -> Any:
    """Cuts predictions of a row of zeros off again: the first B rows of every output.

    Args:
        outputs: One replica's predictions.
        rows: B.

    Returns:
        The same structure; numbers per batch are handed on.
    """
    has_rows = tf.convert_to_tensor(rows) > 0

    def cut(value):
        if isinstance(value, tf.RaggedTensor):
            return value[: tf.where(has_rows, value.nrows(), 0)]
        if isinstance(value, tf.SparseTensor):
            kept = tf.where(has_rows, value.dense_shape[:1], 0)
            size = tf.concat([kept, value.dense_shape[1:]], 0)
            return tf.sparse.slice(value, tf.zeros_like(size), size)
        is_batch = isinstance(value, tf.Tensor) and value.shape.rank
        return tf.cond(has_rows, lambda: value, lambda: value[:0]) if is_batch else value

    return keras.tree.map_structure(cut, outputs)
