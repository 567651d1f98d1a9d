"""Whether a file has, name by name and shape by shape, what Keras will look for in it."""

from collections.abc import Mapping

import keras

from mirrored_keras.checkpoint.optimizer_state import GROUP
from mirrored_keras.replica import private

_OWN = "mirrored_keras/"


def has_layout_of(model: keras.Model, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Returns whether every weight of a model is in a file in its place and shape, and nothing else is.

    Args:
        model: A built model; the optimizer of a file is passed over if it has none.
        shapes: Name -> shape of every array in a `.keras` or `.weights.h5` file.
    """
    groups = private.variables_in_file(model).items()
    wanted = {f"{group}/vars/{name}".lstrip("/"): value for group, entry in groups for name, value in entry.items()}
    if not {id(weight) for weight in model.weights} <= {id(value) for value in wanted.values()}:
        return False
    optimizer = getattr(model, "optimizer", None)
    wanted.update({f"{GROUP}/{i}": v for i, v in enumerate(optimizer.variables if optimizer else ())})
    passed_over = (_OWN,) if optimizer else (_OWN, GROUP)
    found = {name: shape for name, shape in shapes.items() if not name.startswith(passed_over)}
    return found == {name: tuple(value.shape) for name, value in wanted.items()}
