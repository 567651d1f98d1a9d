"""Reads a `tf.train.Checkpoint` of another run into a model, and finds out what it restored."""

import os
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras.errors import CheckpointError, message
from mirrored_keras.replica import private

_OWN_ROOTS = ("save_counter", "optimizer")


def is_checkpoint(prefix: str) -> bool:
    """Returns whether a path is the prefix of a TensorFlow checkpoint.

    Args:
        prefix: A path.
    """
    return os.path.exists(f"{prefix}.index")


def newest_in(path: str) -> str:
    """Returns the prefix of the newest checkpoint, if a path is a folder of TensorFlow checkpoints; else the path.

    Args:
        path: A path.

    Raises:
        CheckpointError: It is a folder without one.
    """
    if not os.path.isdir(path):
        return path
    newest = tf.train.latest_checkpoint(path)
    if newest is None:
        raise CheckpointError(
            message(
                "Weights are restored from a file, from the prefix of a `tf.train.Checkpoint`, or from the newest one "
                "in the folder of a manager.",
                f"path={path!r}, a folder without such checkpoints",
                'load_weights(model, "folder/ckpt-7"), or Checkpoint("folder").restore_latest(model)',
            )
        )
    return newest


def read_checkpoint(model: keras.Model, prefix: str, *, partial: bool) -> set[int]:
    """Restores what a checkpoint holds of a model and its optimizer.

    Args:
        model: A built model with a built optimizer, if it is compiled.
        prefix: The checkpoint's prefix.
        partial: Whether variables may be left as they are.

    Returns:
        Ids of the variables that have been restored.

    Raises:
        CheckpointError: Not all variables of the model could be restored, and `partial` is False.
    """
    optimizer = getattr(model, "optimizer", None)
    slots = optimizer.variables if optimizer is not None and optimizer.built else []
    variables = [*model.weights, *slots]
    restored: set[int] = set()
    for checkpoint in _candidates(model, optimizer, prefix):
        restored = _restored_by(checkpoint, prefix, variables)
        if all(id(weight) in restored for weight in model.weights) or (partial and restored):
            break
    needed = [v for v in model.weights if id(v) not in restored]
    if not partial and needed:
        raise CheckpointError(
            message(
                "Every weight of the model is restored, unless a partial restore is asked for.",
                f"path={prefix!r}; not restored: {[v.path for v in needed[:5]]} and {max(0, len(needed) - 5)} more; "
                f"the checkpoint holds {[name for name, _ in tf.train.list_variables(prefix)[:5]]}",
                "load_weights(model, prefix, partial=True)",
            )
        )
    return restored


def _restored_by(checkpoint, prefix, variables):
    before = [keras.ops.convert_to_numpy(variable) for variable in variables]
    marks = [_mark(value) for value in before]
    for variable, mark in zip(variables, marks, strict=True):
        variable.assign(mark)
    checkpoint.read(prefix).expect_partial()
    restored = set()
    for variable, value, mark in zip(variables, before, marks, strict=True):
        if np.array_equal(keras.ops.convert_to_numpy(variable), mark, equal_nan=value.dtype.kind == "f"):
            variable.assign(value)
        else:
            restored.add(id(variable))
    return restored


def _mark(value: np.ndarray) -> np.ndarray:
    # a value that no checkpoint has for a whole variable: what still has it afterwards was not restored
    if value.dtype.kind == "f" or value.dtype.name == "bfloat16":
        return np.full_like(value, np.nan)
    return np.full_like(value, True if value.dtype.kind == "b" else np.iinfo(value.dtype).max)


def _candidates(model: keras.Model, optimizer: Any, prefix: str) -> Iterator[tf.train.Checkpoint]:
    # a run saved its model under a keyword of its own, or as the root
    roots = private.roots_of_checkpoint(prefix)
    parts = {"optimizer": optimizer} if "optimizer" in roots and optimizer is not None else {}
    for name in sorted(set(roots) - set(_OWN_ROOTS)):
        if name.isidentifier() and not name.startswith("_"):
            yield tf.train.Checkpoint(**{name: model}, **parts)
    yield tf.train.Checkpoint(model)
