"""Plain Python values and arrays as JSON and arrays: what a state file can hold of an object's attributes."""

import sys
import types
from typing import Any

import numpy as np
import tensorflow as tf

from mirrored_keras.errors import CheckpointError, message


class NotPlain(TypeError):
    """A value cannot be written: an open file, a function, a model."""


def encoded(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    """Turns a value into what JSON can hold; arrays go into a dict.

    Args:
        value: `None`, a number, a string, an array, an eager tensor, a function that a module has under its name, or
            lists, tuples, sets and dicts of these.
        arrays: Gets the arrays, by name.
        name: How the names of its arrays begin.

    Returns:
        The value for JSON.

    Raises:
        NotPlain: The value is, or holds, something else.
    """
    if value is None or (isinstance(value, (bool, int, float, str)) and type(value).__module__ == "builtins"):
        return value
    if isinstance(value, (np.ndarray, np.generic, tf.Tensor)):
        return _encoded_array(value, arrays, name)
    if isinstance(value, dict):
        pairs = [[encoded(k, arrays, f"{name}/{i}k"), encoded(v, arrays, f"{name}/{i}")] for i, (k, v) in _items(value)]
        return {"dict": pairs}
    for kind in (list, tuple, set):
        if type(value) is kind:
            members = sorted(value, key=repr) if kind is set else value
            return {kind.__name__: [encoded(part, arrays, f"{name}/{i}") for i, part in enumerate(members)]}
    if isinstance(value, list):  # Keras wraps lists that it tracks
        return encoded(list(value), arrays, name)
    if isinstance(value, types.FunctionType) and _found(value.__module__, value.__qualname__) is value:
        return {"function": [value.__module__, value.__qualname__]}
    raise NotPlain(f"{name}: {type(value).__name__}")


def _found(module, name):
    # only where it is loaded already: a file must not make a program import anything
    return getattr(sys.modules.get(module), name, None)


def _items(value):
    return enumerate(value.items())


def _encoded_array(value, arrays, name):
    if isinstance(value, tf.Tensor):
        if not hasattr(value, "numpy"):
            raise NotPlain(f"{name}: a symbolic tensor")
        value = value.numpy()
    array = np.asarray(value)
    if array.dtype.kind == "O":
        raise NotPlain(f"{name}: an array of objects")
    arrays[name] = array
    return {"scalar" if isinstance(value, np.generic) else "array": name}


def decoded(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Returns the value that `encoded` turned into JSON and arrays.

    Args:
        value: What JSON held.
        arrays: The arrays, by name.

    Returns:
        The value; its arrays are copies.

    Raises:
        CheckpointError: There is no function any more where one was.
    """
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "array":
        return arrays[content].copy()
    if kind == "scalar":
        return arrays[content][()]
    if kind == "function":
        return _function(*content)
    if kind == "dict":
        return {decoded(key, arrays): decoded(part, arrays) for key, part in content}
    return {"list": list, "tuple": tuple, "set": set}[kind](decoded(part, arrays) for part in content)


def _function(module, name):
    function = _found(module, name)
    if function is None:
        raise CheckpointError(
            message(
                "A function that a callback remembers must be found where it was.",
                f"function={module}.{name}",
                "import its module before `fit`; with another version of Keras, start anew in another folder",
            )
        )
    return function
