"""Python generators as data: they can be read once, and `fit` may need more batches than they have."""

import itertools
import types
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from mirrored_keras.errors import BatchError, message

#: Batches of a generator are kept up to this size, to be read again if it ends too early.
KEPT_BYTES = 2**28


def readable_again(arguments: dict[str, Any]) -> None:
    """Lets `fit` read generators as often as it needs to.

    Training starts again from the kept batches of a generator that is too short. Validation reads the same
    batches in every epoch, from memory: Keras starts a new iterator each time, and batches are lost.

    Args:
        arguments: The arguments of `fit` by name; generators in it are replaced.

    Raises:
        BatchError: Several epochs are asked for, without `steps_per_epoch`: a generator that ends has nothing
            for the second one; or a validation generator is long, without `validation_steps`.
    """
    validation = arguments.get("validation_data")
    if isinstance(validation, types.GeneratorType):
        arguments["validation_data"] = _Kept(validation, arguments.get("validation_steps"))
    if not isinstance(arguments.get("x"), types.GeneratorType):
        return
    epochs = arguments.get("epochs", 1) - arguments.get("initial_epoch", 0)
    if arguments.get("steps_per_epoch") is not None:
        arguments["x"] = _endless(arguments["x"])
    elif epochs > 1:
        raise BatchError(
            message(
                "A generator can be read once: after the first epoch nothing is left of it.",
                f"x=a generator, epochs={epochs}, steps_per_epoch=None",
                f"model.fit(..., epochs={epochs}, steps_per_epoch=100), or "
                "tf.data.Dataset.from_generator(function, output_signature=...)",
            )
        )


class _Kept(keras.utils.PyDataset):
    def __init__(self, batches: Iterable[Any], count: int | None):
        super().__init__()
        self._batches = []
        size = 0
        for batch in itertools.islice(batches, count):
            self._batches.append(keras.tree.map_structure(_copy, batch))
            size += _size(batch)
            if count is None and size > KEPT_BYTES:
                raise BatchError(
                    message(
                        "A validation generator is kept in memory, to its end or as far as `validation_steps`.",
                        f"validation_steps=None, and more than {KEPT_BYTES} bytes after {len(self._batches)} batches",
                        "model.fit(..., validation_steps=100), or "
                        "tf.data.Dataset.from_generator(function, output_signature=...)",
                    )
                )

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Any:
        return self._batches[index]


def _endless(generator: Iterator[Any]) -> Iterator[Any]:
    kept: list[Any] | None = []
    size = count = 0
    for batch in generator:
        count += 1
        if kept is not None:
            size += _size(batch)
            # a copy: the generator may fill the same array again
            if size > KEPT_BYTES:
                kept = None
            else:
                kept.append(keras.tree.map_structure(_copy, batch))
        yield batch
    if not kept:
        return  # too large to keep: as Keras, which warns that data ran out
    warnings.warn(
        f"The generator ended after {count} batches and more are asked for: they are read again from memory, in the "
        "same order.\nWhat to do: a generator that does not end, or fewer steps per epoch.",
        stacklevel=2,
    )
    while True:
        yield from kept


def _size(batch):
    return sum(getattr(leaf, "nbytes", 0) for leaf in keras.tree.flatten(batch) if leaf is not None)


def _copy(leaf):
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
