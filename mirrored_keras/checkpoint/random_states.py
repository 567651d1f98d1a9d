"""The random numbers of a process that training draws from."""

import random
import zlib
from typing import Any

import numpy as np


def state_of(model: Any) -> dict[str, Any]:
    """Returns the states of a model's seed generators, of draws without a seed, and of Python's and NumPy's own.

    Args:
        model: A `DistributedModel`.

    Returns:
        A dict for JSON, the same for every number of replicas.
    """
    kind, key, *rest = np.random.get_state(legacy=True)
    version, internal, gauss = random.getstate()
    return {
        "model": model.get_random_state(),
        "numpy": [kind, np.asarray(key).tolist(), *rest],
        "python": [version, list(internal), gauss],
    }


def set_model(model: Any, state: dict[str, Any]) -> None:
    """Lets the layers of a model, and draws without a seed, go on from a state.

    Args:
        model: A `DistributedModel` with the same layers.
        state: From `state_of`.
    """
    model.set_random_state(state["model"])


def set_process(state: dict[str, Any]) -> None:
    """Lets Python's and NumPy's own generators go on from a state.

    Args:
        state: From `state_of`.
    """
    kind, key, *rest = state["numpy"]
    np.random.set_state((kind, np.asarray(key, np.uint32), *rest))
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))


def new_seed() -> int:
    """Returns a seed that follows from the state of Python's generator, which `keras.utils.set_random_seed` sets.

    Nothing is drawn, so that a `fit` draws the same numbers with and without it.
    """
    return zlib.crc32(repr(random.getstate()).encode())
