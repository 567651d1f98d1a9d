"""All variables of a model and its optimizers: their names, their values on every replica, and their first state."""

import dataclasses
from typing import Any, Literal, NamedTuple

import keras
import numpy as np

from mirrored_keras.errors import SetupError, message
from mirrored_keras.replica import private, seeds

Kind = Literal["weight", "state", "optimizer"]


class Label(NamedTuple):
    """Name and kind of a variable: a trained weight, a state that layers update, or one of an optimizer."""

    path: str
    kind: Kind
    dtype: str


@dataclasses.dataclass(frozen=True)
class State:
    """What a training starts from: weights, variables of optimizers, seed generators."""

    weights: list[np.ndarray]
    optimizers: list[np.ndarray]
    seeds: list[list[int]]


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Returns the compiled optimizer, and others that a model holds as attributes.

    Args:
        model: The model.

    Returns:
        Each once.
    """
    parts = [model.optimizer, *vars(model).values()]
    return list({id(part): part for part in parts if isinstance(part, keras.optimizers.Optimizer)}.values())


def _of_optimizers(model):
    return [variable for optimizer in optimizers_of(model) for variable in optimizer.variables]


def labelled(model: keras.Model) -> list[tuple[Label, keras.Variable]]:
    """Returns the variables of a model and of its optimizers, weights first.

    Args:
        model: The model.

    Returns:
        Labels and variables; not those of metrics and seed generators.
    """
    trained = {id(variable) for variable in model.trainable_variables}
    found: list[tuple[Label, keras.Variable]] = []
    for variable in model.weights:
        kind: Kind = "weight" if id(variable) in trained else "state"
        found.append((Label(variable.path, kind, str(variable.dtype)), variable))
    for variable in _of_optimizers(model):
        found.append((Label(variable.path, "optimizer", str(variable.dtype)), variable))
    return found


def read(model: keras.Model) -> list[tuple[Label, np.ndarray, tuple[int, np.ndarray] | None]]:
    """Reads all variables.

    Args:
        model: The model.

    Returns:
        For each the label, the value on the first replica, and `(replica, value)` of a replica that differs from it.
    """
    return [(label, *_copies(variable)) for label, variable in labelled(model)]


def _copies(variable):
    if variable.synchronization == "on_read":
        return _array(variable), None  # every replica keeps a part; reading adds them up
    copies = [_array(copy) for copy in getattr(variable.value, "values", [variable.value])]
    for replica, copy in enumerate(copies[1:], start=1):
        if not np.array_equal(copy, copies[0], equal_nan=copy.dtype.kind == "f"):
            return copies[0], (replica, copy)
    return copies[0], None


def _array(value):
    array = keras.ops.convert_to_numpy(value)
    # bfloat16 is no type of NumPy itself
    return array.astype("float32") if array.dtype.kind not in "fiubc" else array


def state_of(model: keras.Model) -> State:
    """Returns what a built model would start training from.

    Args:
        model: The model.

    Returns:
        The state.
    """
    generators = [seeds.state_of(generator) for generator in _generators(model)]
    return State(model.get_weights(), [_array(v) for v in _of_optimizers(model)], generators)


def set_state(model: keras.Model, state: State) -> None:
    """Lets a model start from the state of another one that was built by the same function.

    Args:
        model: A built model.
        state: From `state_of`.

    Raises:
        SetupError: The model has other variables.
    """
    own = state_of(model)
    if _shapes(own.weights) != _shapes(state.weights) or len(own.seeds) != len(state.seeds):
        raise SetupError(
            message(
                "A build function returns the same model every time, on any number of replicas.",
                f"weights of shapes {_shapes(own.weights)}, and {_shapes(state.weights)} on one replica",
                "build_fn without random choices, and without what depends on the number of replicas",
            )
        )
    model.set_weights(state.weights)
    for variable, value in zip(_of_optimizers(model), state.optimizers, strict=False):
        variable.assign(value)
    for generator, pair in zip(_generators(model), state.seeds, strict=True):
        seeds.set_state(generator, pair)


def _shapes(arrays: list[Any]) -> list[tuple[int, ...]]:
    return [array.shape for array in arrays]


def _generators(model):
    found = [generator for layer in private.all_layers(model) for generator in private.seed_generators_of(layer)]
    return list({id(generator): generator for generator in found}.values())
