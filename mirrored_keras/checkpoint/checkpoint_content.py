"""Writing and reading one checkpoint: whole or not at all, with a list of what is in it."""

import hashlib
import json
import os
import pathlib
import secrets
import shutil

import keras
import tensorflow as tf

from mirrored_keras.checkpoint import model_states
from mirrored_keras.checkpoint.agreement import difference
from mirrored_keras.checkpoint.checksum import check_checksum, has_checksum
from mirrored_keras.checkpoint.contents import read_extra
from mirrored_keras.checkpoint.restoring import load_weights
from mirrored_keras.checkpoint.saving import save_model, save_weights
from mirrored_keras.errors import CheckpointError, message

_DIGESTS = "digests.json"
_DESCRIPTION = "mirrored_keras.json"


class Unreadable(Exception):
    """A checkpoint is damaged: not all of its bytes are there as they were written."""


def write(model: keras.Model, path: pathlib.Path) -> None:
    """Writes a model with its optimizer, whole or not at all.

    Args:
        model: The model.
        path: The target; its suffix is the format.
    """
    if path.suffix == ".tf":
        _write_folder(model, path)
        return
    (save_weights if path.name.endswith(".weights.h5") else save_model)(model, path)


def _description_in(path):
    # Keras loads what a model asks for; whether the file holds more, only a list can tell
    if path.is_dir():
        return json.loads((path / _DESCRIPTION).read_text(encoding="utf-8"))
    return (read_extra(path) or {})["description"]


def _write_folder(model, path):
    temporary = path.with_name(f".{path.name}.writing-{secrets.token_hex(4)}")
    temporary.mkdir(parents=True)
    try:
        _tensorflow_checkpoint(model).write(os.fspath(temporary / "state"))
        (temporary / _DESCRIPTION).write_text(json.dumps(model_states.description_of(model)), encoding="utf-8")
        digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in temporary.iterdir()}
        (temporary / _DIGESTS).write_text(json.dumps(digests), encoding="utf-8")
        for file in temporary.iterdir():
            with open(file, "rb") as handle:
                os.fsync(handle.fileno())
        if path.exists():
            shutil.rmtree(path)
        os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _tensorflow_checkpoint(model):
    parts = {"model": model} if model.optimizer is None else {"model": model, "optimizer": model.optimizer}
    return tf.train.Checkpoint(**parts)


def restore(model: keras.Model, path: pathlib.Path) -> None:
    """Sets weights and optimizer of a model from a checkpoint: all of them, or none.

    Args:
        model: A built model with the same layers and optimizer.
        path: The checkpoint.

    Raises:
        Unreadable: It is damaged.
        CheckpointError: It is of another model.
    """
    _check_whole(path)
    _build_optimizer(model)
    now, then = model_states.description_of(model), _description_in(path)
    names = ("layers", "weights", "optimizer", "optimizer_variables")
    different = [difference(name, now[name], then[name]) for name in names if now[name] != then[name]]
    if different:
        raise _of_another_model(model, path, "; ".join(different))
    if not path.is_dir():
        load_weights(model, path)
        return
    before = model_states.read_arrays(model)
    try:
        _tensorflow_checkpoint(model).read(os.fspath(path / "state")).assert_consumed()
    except Exception as error:
        model_states.set_arrays(model, before)
        raise _of_another_model(model, path, str(error).strip().splitlines()[0][:300]) from error


def _of_another_model(model, path, reason):
    return CheckpointError(
        message(
            "A checkpoint is restored into a model with the same architecture and optimizer, all of it or nothing.",
            f"model={model.name!r}: {reason} in {os.fspath(path)!r}",
            "the model that was saved, built and compiled as then",
        )
    )


def _check_whole(path):
    try:
        if path.is_dir():
            digests = json.loads((path / _DIGESTS).read_text(encoding="utf-8"))
            changed = [n for n, d in digests.items() if hashlib.sha256((path / n).read_bytes()).hexdigest() != d]
            if changed:
                raise Unreadable(f"{changed[0]} is not what was written")
        elif not has_checksum(path):
            raise Unreadable("it has no checksum at its end")
        else:
            check_checksum(path)
    except (OSError, ValueError) as error:
        raise Unreadable(str(error).splitlines()[0]) from error


def _build_optimizer(model):
    if model.optimizer is not None and not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
