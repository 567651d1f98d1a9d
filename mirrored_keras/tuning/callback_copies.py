"""Callbacks for one execution of one trial: made by factories, or copied member by member."""

import copy
import io
import os
import pathlib
import threading
import types
from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras import Checkpoint, Resume
from mirrored_keras.errors import SetupError, message
from mirrored_keras.tuning.trial_context import TrialContext

#: Class -> attribute that holds a path, and whether it is a folder.
_PATHS: tuple[tuple[type, str, bool], ...] = (
    (keras.callbacks.BackupAndRestore, "backup_dir", True),
    (keras.callbacks.TensorBoard, "log_dir", True),
    (Resume, "folder", True),
    (Checkpoint, "folder", True),
    (keras.callbacks.CSVLogger, "filename", False),
    (keras.callbacks.ModelCheckpoint, "filepath", False),
)
#: What `fit` sets, which a callback that was used before still has.
_OF_A_FIT = ("model", "_model", "params", "_params", "validation_data")
# copying some of these fails, copying others leaves TensorFlow unusable, or trains on a copy of the data
_NEVER_COPIED = (
    tf.data.Dataset,
    tf.summary.SummaryWriter,
    tf.Variable,
    keras.Variable,
    keras.Model,
    io.IOBase,
    types.GeneratorType,
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Thread,
)


def callbacks_for(callbacks: Any, context: TrialContext) -> list[keras.callbacks.Callback]:
    """Returns the callbacks of one execution.

    Args:
        callbacks: What `search` was given: a function of a `TrialContext` (or of nothing) that returns a list; or a
            list of callbacks and of functions that return one.
        context: The execution.

    Returns:
        Callbacks that no other execution has, nor their paths.

    Raises:
        SetupError: A member is no callback, or cannot be copied.
    """
    if _is_factory(callbacks):
        made = callbacks_of(_call(callbacks, context))
    else:
        memo: dict[int, Any] = {}  # what two callbacks share, their copies share
        made = []
        for index, member in enumerate(callbacks_of(callbacks)):
            name = f"callbacks[{index}]"
            made.append(_call(member, context) if _is_factory(member) else _copied(member, name, memo))
    for index, callback in enumerate(made):
        if not isinstance(callback, keras.callbacks.Callback):
            raise SetupError(
                message(
                    "`callbacks` of a search are callbacks, or functions that make them.",
                    f"callbacks[{index}]={callback!r}",
                    "tuner.search(x, y, callbacks=lambda context: [keras.callbacks.CSVLogger(...)])",
                )
            )
        give_own_path(callback, context)
    return made


def check_callbacks(callbacks: Any) -> None:
    """Refuses, before the first trial, members that cannot be copied; functions are not called.

    Args:
        callbacks: What `search` was given.

    Raises:
        SetupError: A member cannot be copied.
    """
    if not _is_factory(callbacks):
        memo: dict[int, Any] = {}
        for index, member in enumerate(callbacks_of(callbacks)):
            if not _is_factory(member):
                _copied(member, f"callbacks[{index}]", memo)


def callbacks_of(callbacks: Any) -> list[Any]:
    """Returns what was given as a list.

    Args:
        callbacks: A callback, several, or `None`.
    """
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]


def _is_factory(member):
    return isinstance(member, Callable) and not isinstance(member, keras.callbacks.Callback)


def _call(factory, context):
    code = getattr(factory, "__code__", None)
    takes_nothing = isinstance(factory, type) or (code is not None and code.co_argcount == 0)
    return factory() if takes_nothing else factory(context)


def _copied(member, name, memo):
    if not isinstance(member, keras.callbacks.Callback):
        return member
    own = {key: value for key, value in vars(member).items() if key not in _OF_A_FIT}
    for key, value in own.items():
        _check(value, f"{name}.{key}", depth=0)
    if hasattr(member, "__deepcopy__"):
        return copy.deepcopy(member, memo)
    made = type(member).__new__(type(member))
    memo[id(member)] = made
    vars(made).update(dict.fromkeys(set(vars(member)) & set(_OF_A_FIT)))
    for key, value in own.items():
        try:
            vars(made)[key] = copy.deepcopy(value, memo)
        except Exception as error:  # of any library
            _refuse(f"{name}.{key}", value, f"{type(error).__name__}: {error}")
    return made


def _check(value, name, *, depth):
    if isinstance(value, _NEVER_COPIED):
        _refuse(name, value, "it must not be copied")
    if depth < 3:
        if isinstance(value, dict):
            parts = [(f"{name}[{key!r}]", part) for key, part in value.items()]
        elif isinstance(value, (list, tuple, set)):
            parts = [(f"{name}[{index}]", part) for index, part in enumerate(value)]
        else:
            parts = [(f"{name}.{key}", part) for key, part in getattr(value, "__dict__", {}).items()]
            parts = [] if isinstance(value, (type, types.ModuleType, types.FunctionType)) else parts
        for part_name, part in parts:
            _check(part, part_name, depth=depth + 1)


def _refuse(name, value, why):
    raise SetupError(
        message(
            "Every execution of a trial has callbacks of its own: copies, or what a function makes for it.",
            f"{name}={str(value)[:80]} (of type {type(value).__name__}); {why}",
            "tuner.search(x, y, callbacks=lambda context: [MyCallback(...)])",
        )
    )


def give_own_path(callback: keras.callbacks.Callback, context: TrialContext) -> None:
    """Puts trial and execution into the path of a callback that writes files, if they are not in it.

    `logs` becomes `logs/0003/execution0`, `best.keras` becomes `0003/execution0/best.keras`.

    Args:
        callback: Of one execution.
        context: The execution.
    """
    for kind, attribute, is_folder in _PATHS:
        if isinstance(callback, kind):
            old = os.fspath(getattr(callback, attribute))
            if context.name in old or os.path.abspath(old).startswith(os.path.abspath(context.folder)):
                return
            if is_folder:
                new = os.path.join(old, context.name)
            else:
                new = os.path.join(os.path.dirname(old), context.name, os.path.basename(old))
                os.makedirs(os.path.dirname(new), exist_ok=True)
            _replace_in_attributes(callback, old, new)


def _replace_in_attributes(callback, old, new):
    # some keep further names that begin with the path
    for key, value in vars(callback).items():
        if isinstance(value, (str, pathlib.PurePath)):
            text = os.fspath(value)
            if text == old or text.startswith((old + os.sep, old + ".")):
                vars(callback)[key] = type(value)(new + text[len(old) :])
