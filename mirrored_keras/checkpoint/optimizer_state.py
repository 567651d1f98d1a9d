"""The state of an optimizer in a file: is there one, and does it fit the optimizer that is to go on?"""

from collections.abc import Sequence
from typing import Any

import h5py
import keras

from mirrored_keras.checkpoint.archive import opened_weights
from mirrored_keras.errors import CheckpointError, message
from mirrored_keras.replica import private
from mirrored_keras.replica.update import build_optimizer

#: What Keras only warns about: an optimizer whose state was not restored.
LOST_STATE = "Skipping variable loading for optimizer"
_GROUP = "optimizer/vars"


def archived_optimizer_shapes(path: str) -> list[tuple[int, ...]] | None:
    """Returns the shapes of an optimizer's variables in a `.keras` or `.weights.h5` file.

    Args:
        path: A file that has been checked.

    Returns:
        The shapes in order, `None` if the file holds no optimizer.
    """
    with opened_weights(path) as file:
        if _GROUP not in file:
            return None
        group = file[_GROUP]
        return [group[name].shape for name in sorted(group, key=int)]


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


def restore_from_h5(optimizer: keras.optimizers.Optimizer, variables: Sequence[Any], path: str) -> None:
    """Restores an optimizer from the HDF5 file of a whole model; nothing happens if the file has none.

    Args:
        optimizer: The optimizer; built if it is not.
        variables: The trainable variables.
        path: The file.

    Raises:
        CheckpointError: The file holds another kind of optimizer, or one of other weights.
    """
    with h5py.File(path, "r") as file:
        if "optimizer_weights" not in file:
            return
        values = private.optimizer_weights_of_h5(file)
    build_optimizer(optimizer, variables)
    shapes = [value.shape for value in values]
    check_optimizer_restored(optimizer, shapes, path)
    if len(values) == len(optimizer.variables):
        for variable, value in zip(optimizer.variables, values, strict=True):
            variable.assign(value)
