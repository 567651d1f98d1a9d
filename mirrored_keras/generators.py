"""Python generators as data: they can be read once, and `fit` may need more batches than they have."""

import types
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from mirrored_keras.errors import BatchError, message

#: Batches of a generator are kept up to this size, to be read again if it ends too early.
KEPT_BYTES = 2**28


def readable_again(arguments: dict[str, Any]) -> None:
    """Lets generators that are too short for `fit` start again from the batches that they gave.

    Args:
        arguments: The arguments of `fit` by name; generators in it are replaced.

    Raises:
        BatchError: Several epochs are asked for, without `steps_per_epoch`: a generator that ends has nothing
            for the second one.
    """
    for name, steps in (("x", "steps_per_epoch"), ("validation_data", "validation_steps")):
        if not isinstance(arguments.get(name), types.GeneratorType):
            continue
        if arguments.get(steps) is not None:
            arguments[name] = _endless(arguments[name])
        elif arguments.get("epochs", 1) - arguments.get("initial_epoch", 0) > 1:
            raise BatchError(
                message(
                    "A generator can be read once: after the first epoch nothing is left of it.",
                    f"{name}=a generator, epochs={arguments['epochs']}, {steps}=None",
                    f"model.fit(..., epochs={arguments['epochs']}, {steps}=100), or "
                    "tf.data.Dataset.from_generator(function, output_signature=...)",
                )
            )


def _endless(generator: Iterator[Any]) -> Iterator[Any]:
    kept: list[Any] | None = []
    size = count = 0
    for batch in generator:
        count += 1
        if kept is not None:
            size += sum(getattr(leaf, "nbytes", 0) for leaf in keras.tree.flatten(batch) if leaf is not None)
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


def _copy(leaf):
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
