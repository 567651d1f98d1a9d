"""Exports a model for serving, as one that knows nothing of replicas."""

import os
import pathlib
import shutil
from typing import Any

import keras

from mirrored_keras.checkpoint import refusals
from mirrored_keras.errors import CheckpointError, message
from mirrored_keras.replica import workers


def export_model(model: keras.Model, path: str | os.PathLike[str], **options: Any) -> None:
    """Exports the forward pass of a model as a SavedModel folder, with one copy of every variable.

    The signatures are those of a model on one device: `serve` and `serving_default`, with any number of rows. No
    optimizer is inside; go on training from `save_model`. The folder appears when it is complete.

    Args:
        model: A built model, under any strategy or none; the live model is not changed.
        path: A folder that is not there yet, or is empty; servers expect one per version, "digits/1".
        **options: For `keras.Model.export`, `input_signature` for example, or `format`.

    Raises:
        CheckpointError: There is something at `path`, the model is not built, or the call comes from a replica.

    Example:
        >>> import keras, numpy as np, os, tempfile, tensorflow as tf
        >>> from mirrored_keras import export_model
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        >>> path = os.path.join(tempfile.mkdtemp(), "1")
        >>> export_model(model, path)
        >>> served = tf.saved_model.load(path)
        >>> served.serve(np.ones((4, 3), "float32")).shape
        TensorShape([4, 2])
    """
    refusals.check_context("export_model", getattr(model, "distribute_strategy", None))
    refusals.check_built(model)
    if not workers.is_chief(model.distribute_strategy):
        return
    target = pathlib.Path(os.path.realpath(path))
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise CheckpointError(
            message(
                "An export is a new folder: a server may be reading the one that is there.",
                f"path={os.fspath(path)!r}, which exists",
                f'export_model(model, "{target.parent.name}/{_next(target.name)}")',
            )
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.writing-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        model.export(os.fspath(temporary), **{"verbose": False, **options})
        os.replace(temporary, target)  # takes the place of an empty folder, too
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)


def _next(name: str) -> str:
    return str(int(name) + 1) if name.isdigit() else f"{name}_2"
