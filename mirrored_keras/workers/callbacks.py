"""Callbacks of Keras that write files: on several workers the chief's alone write, and all read."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from mirrored_keras.replica import workers
from mirrored_keras.replica.instances import Replacement, replaced_methods

_HOOKS = ("set_model", *(name for name in dir(keras.callbacks.Callback) if name.startswith("on_")))
#: They write and never read: other workers leave them out.
_ONLY_WRITE = ("CSVLogger", "TensorBoard", "RemoteMonitor")
#: What they write, by the hooks that do; their other hooks read, on every worker.
_WRITE_IN = {"BackupAndRestore": ("on_train_batch_end", "on_epoch_end", "on_train_end")}


@contextlib.contextmanager
def files_by_the_chief(model: keras.Model, arguments: dict[str, Any]) -> Iterator[None]:
    """Keeps callbacks of Keras from writing on other workers than the chief, inside the block.

    `ModelCheckpoint` and all others that call `model.save`, `save_weights` or `export` need no help here: those
    methods write on the chief alone.

    Args:
        model: The model.
        arguments: Of `fit`, `evaluate` or `predict`, by name; other workers than the chief show no progress bar
            unless they are asked to.

    Yields:
        Nothing.
    """
    if workers.is_chief(model.distribute_strategy):
        yield
        return
    if arguments.get("verbose", "auto") == "auto":
        arguments["verbose"] = 0
    with replaced_methods([part for callback in _flat(arguments.get("callbacks")) for part in _replacements(callback)]):
        yield


def _flat(callbacks):
    found = []
    for callback in keras.tree.flatten(callbacks or []):
        found += _flat(callback.callbacks) if isinstance(callback, keras.callbacks.CallbackList) else [callback]
    return found


def _replacements(callback) -> list[Replacement]:
    kinds = {kind.__name__ for kind in type(callback).__mro__ if kind.__module__.startswith("keras.")}
    names: tuple[str, ...] = ()
    if kinds & set(_ONLY_WRITE):
        names = _HOOKS
    for kind in kinds & set(_WRITE_IN):
        names += _WRITE_IN[kind]
    return [(callback, name, _left_out) for name in names]


def _left_out(_):
    return lambda *args, **kwargs: None
