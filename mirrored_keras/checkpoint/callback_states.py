"""What callbacks remember: read before a process ends, and given to their successors in the next one."""

import copy
import csv
import inspect
import os
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from mirrored_keras.checkpoint.atomic import written_atomically
from mirrored_keras.checkpoint.plain_values import NotPlain, decoded, encoded

_OF_THE_FIT = ("params", "_params", "model", "_model", "validation_data")  # set anew for every `fit`


class CallbackStates:
    """Reads and sets the states of the callbacks of one `fit`.

    A callback with `get_state()` and `set_state(state)` decides itself. Of all others every attribute counts that
    is a number, string, array, `None`, or a list, tuple, set or dict of these, apart from options: attributes that
    have the name of an argument of `__init__` (underscores apart) and have not changed since `fit` began.

    Args:
        callbacks: The callbacks, before `fit` begins.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]):
        self._callbacks = list(callbacks)
        self._options = [_options_of(callback) for callback in callbacks]

    def read(self, arrays: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """Reads all states.

        Args:
            arrays: Gets the arrays.

        Returns:
            One dict per callback, for JSON.
        """
        found = []
        for index, callback in enumerate(self._callbacks):
            name = f"callbacks/{index}"
            if _has_hooks(callback):
                state = {"own": encoded(callback.get_state(), arrays, name)}
            else:
                state = {"attributes": self._attributes(index, arrays, name)}
            found.append({"class": type(callback).__name__, **state})
        return found

    def _attributes(self, index, arrays, name):
        attributes = {}
        options = self._options[index]
        for key, value in vars(self._callbacks[index]).items():
            if key in _OF_THE_FIT or (key in options and _alike(options[key], value)):
                continue
            own: dict[str, np.ndarray] = {}
            try:
                attributes[key] = encoded(value, own, f"{name}/{key}")
            except NotPlain:
                continue  # open files, functions, models: made anew by the callback itself
            arrays.update(own)
        return attributes

    def set(self, states: Sequence[dict[str, Any]], arrays: dict[str, np.ndarray]) -> None:
        """Sets the states that other callbacks of the same classes had, in their order.

        Args:
            states: From `read`.
            arrays: From `read`.
        """
        left = list(states)
        for callback in self._callbacks:
            state = next((s for s in left if s["class"] == type(callback).__name__), None)
            if state is None:
                continue
            left.remove(state)
            if _has_hooks(callback) and "own" in state:
                callback.set_state(decoded(state["own"], arrays))
                continue
            for key, value in state.get("attributes", {}).items():
                if not (isinstance(callback, keras.callbacks.CSVLogger) and key == "append_header"):
                    vars(callback)[key] = decoded(value, arrays)

    def warn_of_missing(self, states: Sequence[dict[str, Any]]) -> None:
        """Warns where a state belongs to a callback that is not there any more.

        Args:
            states: From `read`.
        """
        names = [type(callback).__name__ for callback in self._callbacks]
        missing = []
        for state in states:
            if not state.get("attributes", True) or state.get("own", True) is None:
                continue  # there was nothing to remember
            if state["class"] in names:
                names.remove(state["class"])
            else:
                missing.append(state["class"])
        if missing:
            warnings.warn(
                f"The training that is continued had callbacks that this `fit` does not have: {missing}; what they "
                "remembered is dropped.\nWhat to do: nothing, or give the same callbacks in the same order.",
                stacklevel=2,
            )


def continue_files(callbacks: Sequence[keras.callbacks.Callback], *, epochs: int) -> None:
    """Lets `CSVLogger`s go on with their files, without rows of epochs that will be trained again.

    Args:
        callbacks: The callbacks, before `fit` begins.
        epochs: Number of the first epoch that is not finished.
    """
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger) and os.path.exists(callback.filename):
            callback.append = True
            path = pathlib.Path(callback.filename)
            with open(path, newline="", encoding="utf-8") as file:
                rows = list(csv.reader(file, delimiter=callback.sep))
            kept = [row for row in rows if row and not (row[0].isdigit() and int(row[0]) >= epochs)]
            if len(kept) < len([row for row in rows if row]):
                with written_atomically(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
                    csv.writer(file, delimiter=callback.sep).writerows(kept)


def _has_hooks(callback):
    return callable(getattr(callback, "get_state", None)) and callable(getattr(callback, "set_state", None))


def _options_of(callback):
    parameters = inspect.signature(type(callback).__init__).parameters
    options = {}
    for key, value in vars(callback).items():
        if key.lstrip("_") in parameters:
            try:
                encoded(value, {}, key)
            except NotPlain:
                continue
            options[key] = copy.deepcopy(value)
    return options


def _alike(one, other):
    first: dict[str, np.ndarray] = {}
    second: dict[str, np.ndarray] = {}
    try:
        same = encoded(one, first, "") == encoded(other, second, "")
    except NotPlain:
        return False
    return same and all(first[name].tobytes() == second[name].tobytes() for name in first)
