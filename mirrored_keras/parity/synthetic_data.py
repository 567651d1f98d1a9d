"""Data made from a model's own inputs and losses: unequal rows, weights and masks, short batches.

Equal rows, full masks or even splits would make every wrong normalisation look right.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from mirrored_keras.errors import SetupError, message
from mirrored_keras.parity import losses
from mirrored_keras.replica import private

_UNKNOWN_SIZE = {1: 8, 2: 32, 3: 16}  # for one unknown dimension, for two (images), for three
_BATCHES_OF_A_PASS = 4


def rows_of_batches(steps: int, replicas: Sequence[int]) -> list[int]:
    """Returns the rows of every batch: they do not split evenly, and every fourth and the last are short.

    Args:
        steps: Number of batches.
        replicas: The numbers of replicas to come.

    Returns:
        One number per step; the short ones leave a replica without rows where there are more than two.
    """
    most = max(replicas)
    full, short = 3 * most + 1, max(most - 1, 1)
    return [short if step == steps or step % _BATCHES_OF_A_PASS == 0 else full for step in range(1, steps + 1)]


def make(model: keras.Model, *, steps: int, replicas: Sequence[int], seed: int) -> list[tuple[Any, ...]]:
    """Makes global batches that a model can be trained on.

    Args:
        model: A compiled model that knows its inputs.
        steps: Number of batches.
        replicas: The numbers of replicas to come.
        seed: Of the numbers.

    Returns:
        Tuples `(x,)`, `(x, y)` or `(x, y, sample_weight)`. Weights are left out for an own `train_step`.

    Raises:
        SetupError: The model does not say what it takes, or its loss takes what cannot be guessed.
    """
    inputs = _inputs_of(model)
    random = np.random.default_rng(seed)
    rows = rows_of_batches(steps, replicas)
    total = sum(rows)
    x = keras.tree.map_structure(lambda tensor: _input(model, tensor, total, random), inputs)
    arrays: tuple[Any, ...] = (x,)
    if losses.takes_targets(model):
        y = _targets(model, total, random)
        arrays = (x, y)
        if losses.takes_weights(model):
            arrays = (x, y, _weights(model, y, total, random))
    limits = np.cumsum([0, *rows])
    return [keras.tree.map_structure(lambda array, a=a, b=b: array[a:b], arrays) for a, b in itertools.pairwise(limits)]


def _inputs_of(model):
    try:
        found = private.graph_of(model)[0] if hasattr(model, "inputs") and model.inputs else None
    except (AttributeError, ValueError):
        found = None
    if found is None or not getattr(model, "outputs", None):
        raise _cannot("it has no inputs yet: subclassed, or not built")
    return found


def _cannot(why):
    return SetupError(
        message(
            "Data can be made for a model with inputs and outputs, and for losses of Keras or of numbers.",
            why,
            "check(build_fn, data=make_dataset), or --data module:make_dataset",
        )
    )


def _input(model, tensor, rows, random):
    shape, dtype = (rows, *_sizes(tensor.shape[1:])), tensor.dtype
    if dtype == "string":
        raise _cannot(f"input {tensor.name!r} takes strings")
    if dtype == "bool":
        return random.uniform(size=shape) < 0.6
    if "int" in dtype:
        ids = random.integers(1, max(_ids(model), 2), size=shape).astype(dtype)
        return _padded(ids, 0, 1) if len(shape) == 2 and shape[1] > 1 else ids
    values = random.normal(size=shape) * _growing(rows, len(shape))
    padding = [layer.mask_value for layer in private.all_layers(model) if isinstance(layer, keras.layers.Masking)]
    return (_padded(values, padding[0], 1) if padding and len(shape) > 2 else values).astype(dtype)


def _sizes(shape):
    unknown = sum(size is None for size in shape)
    return [_UNKNOWN_SIZE.get(unknown, 8) if size is None else size for size in shape]


def _growing(rows, rank):
    return np.linspace(0.5, 1.5, rows).reshape(rows, *[1] * (rank - 1))


def _padded(values, padding, axis):
    """Puts padding behind 1 ... L steps of every row."""
    length = values.shape[axis]
    lengths = 1 + 5 * np.arange(len(values)) % length
    values[np.arange(length) >= lengths[:, None]] = padding
    return values


def _ids(model):
    limits = [
        getattr(layer, name)
        for layer in private.all_layers(model)
        for name in ("input_dim", "num_tokens")
        if isinstance(getattr(layer, name, None), int)
    ]
    return min(limits, default=2)


def _targets(model, rows, random):
    outputs = private.graph_of(model)[1]
    flat = keras.tree.flatten(outputs)
    by_output = losses.per_output(model)
    made = [
        _target(loss, (rows, *_sizes(output.shape[1:])), random) for loss, output in zip(by_output, flat, strict=True)
    ]
    return keras.tree.pack_sequence_as(outputs, made)


def _target(loss, shape, random):
    floatx = keras.config.floatx()
    name = losses.name_of(loss)
    if name in ("CTC",):
        raise _cannot(f"loss={name}")
    if name in ("SparseCategoricalCrossentropy", "sparse_categorical_crossentropy"):
        return random.integers(0, max(shape[-1], 2), size=shape[:-1])
    if name in ("Circle", "circle"):
        return random.integers(0, 3, size=shape[:1])
    if losses.is_of_classes(name):
        return np.eye(shape[-1], dtype=floatx)[random.integers(0, shape[-1], size=shape[:-1])]
    if name in ("KLDivergence", "kl_divergence"):
        values = random.uniform(0.1, 1, size=shape)
        return (values / values.sum(axis=-1, keepdims=True)).astype(floatx)
    if "binary" in name.lower() or name.lower() in ("dice", "tversky", "hinge", "squaredhinge", "squared_hinge"):
        return (random.uniform(size=shape) < 0.4).astype(floatx)
    if name.startswith(("Mean", "mean", "Huber", "huber", "LogCosh", "log_cosh")) and "log" not in name.lower()[4:]:
        return (random.normal(size=shape) * 2 * _growing(shape[0], len(shape))).astype(floatx)
    return random.uniform(0.05, 0.95, size=shape).astype(floatx)  # what any loss of one's own can take


def _weights(model, y, rows, random):
    """Weights of rows, a third of them 0, of the rank that each loss has."""
    targets = keras.tree.flatten(y)
    made = []
    for loss, target in zip(losses.per_output(model), targets, strict=True):
        weights = random.uniform(0.2, 3, size=rows)
        weights[1::3] = 0
        rank = losses.rank_of_values(loss, target)
        made.append(weights.reshape(rows, *[1] * (max(rank, 1) - 1)).astype(keras.config.floatx()))
    return keras.tree.pack_sequence_as(y, made)
