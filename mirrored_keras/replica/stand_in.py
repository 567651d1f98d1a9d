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

from mirrored_keras.replica import private


def applies_to(model: keras.Model, data: Any) -> bool:
    """Returns whether a row of zeros may stand in for no rows.

    Not for ragged and sparse data.

    Args:
        model: The model.
        data: The data of all replicas.

    Returns:
        Whether `filled` can be used.
    """
    local = model.distribute_strategy.experimental_local_results
    leaves = [local(leaf)[0] for leaf in keras.tree.flatten(data) if leaf is not None]
    return all(isinstance(leaf, tf.Tensor) and leaf.shape.rank for leaf in leaves)


def row_shapes(strategy: tf.distribute.Strategy, data: Any) -> list[Any]:
    """Returns the shape of one row of every tensor, taken from the first replica, which always has rows.

    Args:
        strategy: The strategy.
        data: The data of all replicas.

    Returns:
        One int32 vector per tensor, in flattened order.
    """
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
    return [tf.shape(strategy.experimental_local_results(leaf)[0])[1:] for leaf in leaves]


def filled(data: Any, rows: tf.Tensor | int, shapes: Sequence[Any]) -> Any:
    """Returns the data with one row of zeros if there is none, else the data.

    Args:
        data: One replica's dense data.
        rows: B.
        shapes: From `row_shapes`.

    Returns:
        The same structure.
    """
    if isinstance(rows, int) and rows > 0:
        return data
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
    zeros = [
        lambda t=leaf, s=shape: tf.zeros(tf.concat([[1], s], 0), t.dtype)
        for leaf, shape in zip(leaves, shapes, strict=True)
    ]
    if isinstance(rows, int):
        chosen = [make() for make in zeros]
    else:
        chosen = tf.cond(rows > 0, lambda: [tf.identity(t) for t in leaves], lambda: [make() for make in zeros])
    found = iter(tf.ensure_shape(t, [None, *leaf.shape[1:]]) for t, leaf in zip(chosen, leaves, strict=True))
    return keras.tree.map_structure(lambda leaf: None if leaf is None else next(found), data)


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
        The same structure; numbers per batch and sparse or ragged outputs are handed on.
    """

    def cut(value):
        has_rows = isinstance(value, tf.Tensor) and value.shape.rank
        return tf.cond(tf.convert_to_tensor(rows) > 0, lambda: value, lambda: value[:0]) if has_rows else value

    return keras.tree.map_structure(cut, outputs)
