"""The state of an optimizer in a file: is there one, and does it fit the optimizer that is to go on?"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from mirrored_keras.checkpoint.archive import opened_weights
from mirrored_keras.errors import CheckpointError, message
from mirrored_keras.replica import private
from mirrored_keras.replica.update import build_optimizer, inner_optimizers

#: What Keras only warns about: an optimizer whose state was not restored.
LOST_STATE = "Skipping variable loading for optimizer"
#: Where `.keras` and `.weights.h5` files have an optimizer.
GROUP = "optimizer/vars"
#: Where an HDF5 file of a whole model has an optimizer whose variables share names, which Keras refuses.
OWN_GROUP = "mirrored_keras/optimizer"


def optimizer_shapes(shapes: Mapping[str, tuple[int, ...]]) -> list[tuple[int, ...]] | None:
    """Returns the shapes of an optimizer's variables in order, `None` if a file holds no optimizer.

    Args:
        shapes: Name -> shape of every array in a `.keras` or `.weights.h5` file.
    """
    names = [name for name in shapes if name.startswith(GROUP)]
    return [shapes[name] for name in sorted(names, key=lambda name: int(name.rpartition("/")[2]))] or None


def check_optimizer_restored(
    optimizer: keras.optimizers.Optimizer | None, shapes: Sequence[tuple[int, ...]] | None, path: str
) -> None:
    """Refuses an optimizer that could not take the state in a file, about which Keras only warns.

    An optimizer that was saved before it was built has no state to lose; the new one starts like it.

    Args:
        optimizer: The optimizer that was to take the state; nothing is checked without one.
        shapes: Those in the file; nothing is checked without them.
        path: The file.

    Raises:
        CheckpointError: The numbers of variables differ, or their shapes.
    """
    if optimizer is None or shapes is None:
        return
    own = [tuple(variable.shape) for variable in optimizer.variables]
    if list(shapes) == own or list(shapes) == _shapes_unbuilt(optimizer):
        return
    raise CheckpointError(
        message(
            "An optimizer goes on with the state that was saved of the same optimizer for the same weights.",
            f"path={path!r} with {len(shapes)} variables of an optimizer, of shapes {list(shapes)[:6]}; "
            f"optimizer={optimizer.name!r} with {len(own)}, of shapes {own[:6]}",
            "compile with the optimizer of the file; or, to start with a new one, load_weights(model, path, "
            "partial=True) or load_model(path, compile=False)",
        )
    )


def _shapes_unbuilt(optimizer):
    return [tuple(variable.shape) for variable in type(optimizer).from_config(optimizer.get_config()).variables]


def facts_of(model: keras.Model) -> dict[str, list[int]] | None:
    """Returns what an optimizer knows and no configuration holds.

    Args:
        model: The model.

    Returns:
        Indices into `model.weights` of the weights that the built optimizer trains, and of those that are excluded
        from weight decay; `None` for no optimizer, or one that is not built.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not optimizer.built:
        return None
    indices = {id(weight): index for index, weight in enumerate(model.weights)}
    known = [variable for variable in private.variables_of(optimizer) if id(variable) in indices]
    decaying = [part for part in inner_optimizers(optimizer) if part.weight_decay]
    excluded = [v for v in known if any(not private.uses_weight_decay(part, v) for part in decaying)]
    return {"trains": [indices[id(v)] for v in known], "excluded": [indices[id(v)] for v in excluded]}


def restore_optimizer(model: keras.Model, extra: dict[str, Any] | None, path: str) -> None:
    """Lets the optimizer of a loaded model go on; nothing happens without one in the model or in the file.

    Where layers were frozen after the optimizer was built, or weights are excluded from its decay, the optimizer is
    made again for the weights of then.

    Args:
        model: A model that was compiled as it was saved.
        extra: What `read_extra` found in the file.
        path: The file.

    Raises:
        CheckpointError: The file holds another kind of optimizer, or one of other weights.
    """
    values = values_in(path)
    if getattr(model, "optimizer", None) is None or values is None:
        return
    facts = (extra or {}).get("optimizer")
    if facts is not None and facts != facts_of(model):
        model.optimizer = _made_again(model, facts)
    assign(model.optimizer, model.trainable_variables, values, path)


def _made_again(model, facts):
    optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
    if facts["excluded"]:
        for part in inner_optimizers(optimizer):
            part.exclude_from_weight_decay(var_list=[model.weights[index] for index in facts["excluded"]])
    optimizer.build([model.weights[index] for index in facts["trains"]])
    return optimizer


def values_in(path: str) -> list[Any] | None:
    """Reads the variables of an optimizer.

    Args:
        path: A file that has been checked, in any of the formats.

    Returns:
        Arrays in the order of the optimizer's variables, `None` if the file holds no optimizer.
    """
    with opened_weights(path) as file:
        if "optimizer_weights" in file:
            return private.optimizer_weights_of_h5(file)
        group = next((file[name] for name in (GROUP, OWN_GROUP) if name in file), None)
        return None if group is None else [group[name][()] for name in sorted(group, key=int)]


def assign(optimizer: keras.optimizers.Optimizer, variables: Sequence[Any], values: Sequence[Any], path: str) -> None:
    """Gives an optimizer the values of a file.

    Args:
        optimizer: The optimizer; built if it is not.
        variables: The weights to build it for.
        values: From `values_in`.
        path: The file.

    Raises:
        CheckpointError: The file holds another kind of optimizer, or one of other weights.
    """
    build_optimizer(optimizer, variables)
    check_optimizer_restored(optimizer, [value.shape for value in values], path)
    if len(values) == len(optimizer.variables):
        for variable, value in zip(optimizer.variables, values, strict=True):
            variable.assign(value)
