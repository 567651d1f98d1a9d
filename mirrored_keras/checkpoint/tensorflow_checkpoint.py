"""Reads a `tf.train.Checkpoint` of another run into a model, and finds out what it restored."""

import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras.errors import CheckpointError, message

_OWN_ROOTS = ("save_counter", "optimizer", "_CHECKPOINTABLE_OBJECT_GRAPH")


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
    before = [keras.ops.convert_to_numpy(variable) for variable in variables]
    marks = [_mark(value) for value in before]
    for variable, mark in zip(variables, marks, strict=True):
        variable.assign(mark)
    _checkpoint(model, optimizer, prefix).read(prefix).expect_partial()
    restored = set()
    for variable, value, mark in zip(variables, before, marks, strict=True):
        if np.array_equal(keras.ops.convert_to_numpy(variable), mark, equal_nan=value.dtype.kind == "f"):
            variable.assign(value)
        else:
            restored.add(id(variable))
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


def _mark(value: np.ndarray) -> np.ndarray:
    # a value that no checkpoint has for a whole variable: what still has it afterwards was not restored
    if value.dtype.kind == "f" or value.dtype.name == "bfloat16":
        return np.full_like(value, np.nan)
    return np.full_like(value, True if value.dtype.kind == "b" else np.iinfo(value.dtype).max)


def _checkpoint(model: keras.Model, optimizer: Any, prefix: str) -> tf.train.Checkpoint:
    roots = {name.split("/")[0] for name, _ in tf.train.list_variables(prefix)}
    named = sorted(roots - set(_OWN_ROOTS))
    parts = {"optimizer": optimizer} if "optimizer" in roots and optimizer is not None else {}
    if len(named) == 1 and not named[0].startswith(("_", "layer")):
        return tf.train.Checkpoint(**{named[0]: model}, **parts)  # the keyword under which the run saved it
    return tf.train.Checkpoint(model)
