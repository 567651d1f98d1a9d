"""Keeps what one replica's layers hold from being overwritten by the next replica.

`MirroredStrategy` traces the replicas in threads that take turns: a reduction over replicas stops one
thread and lets the next run up to the same point. All threads share the Python objects of the model, so a
tensor that a layer remembers (`self.hidden = x`, `add_loss`) before a reduction would be another
replica's tensor after it.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.replica import private


@contextlib.contextmanager
def own_tensors_kept(model: keras.Model | None) -> Iterator[None]:
    """Gives each replica back, after a reduction, the tensors that its layers held before.

    Args:
        model: The model whose layers may hold tensors; `None` keeps nothing.

    Yields:
        Nothing; do the reduction inside the block.
    """
    layers = [] if model is None else private.all_layers(model)
    held = [(layer, _tensors_of(layer), private.added_losses(layer)) for layer in layers]
    yield
    for layer, tensors, losses in held:
        layer.__dict__.update(tensors)
        private.restore_added_losses(layer, losses)


def _tensors_of(layer: Any) -> dict[str, Any]:
    return {name: value for name, value in layer.__dict__.items() if _holds_tensor(value)}


def _holds_tensor(value):
    if isinstance(value, (list, tuple)):
        return any(isinstance(part, tf.Tensor) for part in value)
    if isinstance(value, dict):
        return any(isinstance(part, tf.Tensor) for part in value.values())
    return isinstance(value, tf.Tensor)
