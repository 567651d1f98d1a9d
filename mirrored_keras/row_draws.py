"""Draws by row: a replica draws for all rows of the global batch and keeps what belongs to its own.

One replica draws numbers of the shape `(G, ...)`. With the same seed, replica r gets the rows
`[first_row, first_row + B)` of the very same numbers by drawing all G of them. A layer whose output row i
depends on input row i and on draw i alone is therefore run on this replica's rows, put among rows of
zeros to where they stand in the global batch, and its output is cut back to them.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.errors import SetupError, message
from mirrored_keras.replica import seeds


def run(layer: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls a layer on this replica's rows, with the draws that one replica would make for them.

    Args:
        layer: Names the layer in an error.
        call: The layer's `call`, or any function of tensors whose first axis is the rows.
        args: Its positional arguments; dense tensors in them are put among G rows, the rest is handed on.
        kwargs: Its keyword arguments, likewise.

    Returns:
        What `call` returns, with this replica's rows; the row that stands in for none gets some draw.

    Raises:
        SetupError: The first axis of a tensor is not the rows of the batch, as far as is known beforehand.
        tf.errors.InvalidArgumentError: The same, found while running.
    """
    draws = seeds.running()
    if draws is None:
        return call(*args, **kwargs)
    tensors = [leaf for leaf in keras.tree.flatten((args, kwargs)) if tf.is_tensor(leaf)]
    if not all(isinstance(leaf, tf.Tensor) for leaf in tensors):
        return call(*args, **kwargs)  # ragged or sparse: the layer's generator gives the warning
    tensors = [leaf for leaf in tensors if leaf.shape.rank]
    draws.padded = True
    try:
        if not tensors or not all(_may_be_rows(leaf, draws, layer) for leaf in tensors):
            return call(*args, **kwargs)  # the same numbers of rows on one replica: the same draw
        args, kwargs = keras.tree.map_structure(lambda leaf: _among_all(leaf, draws, layer), (args, kwargs))
        outputs = call(*args, **kwargs)
    finally:
        draws.padded = False
    return own_rows(outputs, draws)


def drawn(function: Callable[[Any], Any], batch: Any, rows: Any) -> Any:
    """Calls a function that draws for a number of rows, for this replica's or for all, and returns this replica's.

    It draws for all G rows, with the seed that every replica has, where draws are made by row and in a loop
    without a `DistributedModel`.

    Args:
        function: Takes a number of rows.
        batch: The `GlobalBatch`.
        rows: Rows of this replica's data; 1 where a row of zeros stands in for none.

    Returns:
        What `function` returns, with `rows` rows.
    """
    draws = seeds.running()
    if batch.num_replicas == 1 or (draws is not None and not draws.by_row):
        return function(rows)
    own = seeds.Draws(by_row=True, local_rows=rows, first_row=batch.first_row, global_rows=batch.global_rows)
    own.padded = True  # layers that the function calls see all rows already
    with seeds.drawing(own):
        values = function(own.global_rows)
    return own_rows(values, own)


def own_rows(values: Any, draws: seeds.Draws) -> Any:
    """Cuts values for the rows of the global batch down to this replica's.

    Args:
        values: A structure of tensors with G rows; numbers are handed on.
        draws: How this replica draws.

    Returns:
        The same structure with this replica's rows.
    """

    def cut(value):
        if not isinstance(value, tf.Tensor) or not value.shape.rank:
            return value
        first = _first(draws)
        own = value[first : first + draws.local_rows]
        static = draws.local_rows if isinstance(draws.local_rows, int) else None
        return tf.ensure_shape(own, [static, *value.shape[1:]])

    return keras.tree.map_structure(cut, values)


def _may_be_rows(leaf, draws, layer):
    size = leaf.shape[0]
    if isinstance(draws.local_rows, int) and size is not None and size != draws.local_rows:
        raise SetupError(_message(layer, size, draws))
    # a size that is known beforehand, where that of the batch is not: a table of positions or the like
    return size is None or isinstance(draws.local_rows, int)


def _message(layer, size, draws):
    return message(
        "With draws by row, the first axis of what a random layer is given must be the rows of the batch.",
        f"layer={layer}, first axis={size}, rows of this replica={draws.local_rows}",
        "layer.draws_per_row = False if what the layer is given does not depend on the rows; else "
        'model.compile(..., randomness="replica")',
    )


def _first(draws):
    # a row that stands in for none has no place of its own
    if all(isinstance(count, int) for count in (draws.first_row, draws.global_rows, draws.local_rows)):
        return min(draws.first_row, draws.global_rows - draws.local_rows)
    return tf.minimum(draws.first_row, draws.global_rows - draws.local_rows)


def _among_all(leaf, draws, layer):
    if not isinstance(leaf, tf.Tensor) or not leaf.shape.rank:
        return leaf
    if leaf.shape[0] is None or not isinstance(draws.local_rows, int):
        same = tf.debugging.assert_equal(
            tf.shape(leaf)[0], draws.local_rows, message=_message(layer, "another number", draws)
        )
        with tf.control_dependencies([same] if same is not None else []):
            leaf = tf.identity(leaf)
    first = _first(draws)
    around = [[first, draws.global_rows - first - draws.local_rows]]
    return tf.pad(leaf, tf.stack([tf.stack(sides) for sides in around + [[0, 0]] * (leaf.shape.rank - 1)]))
