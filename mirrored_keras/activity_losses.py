"""Activity losses in the units of the installed Keras: means over rows since Keras 3.14, sums before."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras

from mirrored_keras.global_batch import GlobalBatch
from mirrored_keras.replica import private

#: Before Keras 3.14 a layer adds its activity regulariser as it is: a sum over the rows of the batch.
ARE_SUMS_OVER_ROWS = tuple(int(part) for part in keras.__version__.split(".")[:2]) < (3, 14)


@contextlib.contextmanager
def counted_once_per_row(model: keras.Model) -> Iterator[None]:
    """Lets the layers of a model add activity losses in "mean of this replica's rows" units.

    A sum over this replica's rows becomes (G / B) * sum, so that a step's factor B / G gives the sum of one
    replica. Does nothing where Keras adds means already. Hold it around all replicas, not inside one: they
    share the layers.

    Args:
        model: The model whose layers run inside the block.

    Yields:
        Nothing.
    """
    layers = [layer for layer in private.all_layers(model) if layer.activity_regularizer] if ARE_SUMS_OVER_ROWS else []
    originals = [layer.activity_regularizer for layer in layers]
    for layer, original in zip(layers, originals, strict=True):
        layer.activity_regularizer = _sum_of_rows(original)
    try:
        yield
    finally:
        for layer, original in zip(layers, originals, strict=True):
            layer.activity_regularizer = original


def _sum_of_rows(regularizer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def in_mean_of_rows_units(output: Any) -> Any:
        batch = GlobalBatch.active()
        value = regularizer(output)
        return value if batch is None else batch.sum_of_rows(value)

    return in_mean_of_rows_units
