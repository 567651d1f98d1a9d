"""The checkpoints in one folder: their names, and writing and reading one of them."""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import secrets
import shutil
import urllib.parse
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

from mirrored_keras.checkpoint import model_states
from mirrored_keras.checkpoint.atomic import written_atomically
from mirrored_keras.checkpoint.checksum import add_checksum, check_checksum, has_checksum
from mirrored_keras.checkpoint.policies import Saved
from mirrored_keras.errors import CheckpointError, message

FORMATS = (".keras", ".weights.h5", ".h5", "tf")
_NAME = re.compile(r"checkpoint-(\d{6,})-(\d{9,})((?:-[^-=]+=[^=]+?)*)(\.keras|\.weights\.h5|\.h5|\.tf)")
_METRIC = re.compile(r"-([^-=]+)=([^=]+?)(?=-[^-=]+=|$)")
_DIGESTS = "digests.json"


class Unreadable(Exception):
    """A checkpoint is damaged: not all of its bytes are there as they were written."""


def name_of(*, epoch: int, step: int, metrics: dict[str, float], form: str) -> str:
    """Returns the name of a checkpoint, which says all that there is to know without opening it.

    Args:
        epoch: Epochs that are finished.
        step: Steps of the next one that are done.
        metrics: The monitored numbers.
        form: One of `FORMATS`.
    """
    text = "".join(f"-{_quoted(name)}={value!r}" for name, value in metrics.items())
    return f"checkpoint-{epoch:06d}-{step:09d}{text}{'.tf' if form == 'tf' else form}"


def _quoted(name):
    return urllib.parse.quote(name, safe="").replace("-", "%2D")


def saved_in(folder: pathlib.Path, form: str) -> list[Saved]:
    """Lists the checkpoints of a folder from the names of the files that are there.

    Args:
        folder: The folder.
        form: One of `FORMATS`.

    Returns:
        The checkpoints, the oldest first.
    """
    suffix = ".tf" if form == "tf" else form
    found = []
    for path in folder.glob("checkpoint-*"):
        match = _NAME.fullmatch(path.name)
        if match and match[4] == suffix:
            metrics = {urllib.parse.unquote(name): float(value) for name, value in _METRIC.findall(match[3])}
            found.append(Saved(int(match[1]), int(match[2]), metrics, os.fspath(path)))
    return sorted(found, key=lambda saved: (saved.epoch, saved.step))


def remove(saved: Saved) -> None:
    """Removes a checkpoint.

    Args:
        saved: The checkpoint.
    """
    if os.path.isdir(saved.path):
        shutil.rmtree(saved.path)
    else:
        pathlib.Path(saved.path).unlink(missing_ok=True)


def write(model: keras.Model, path: pathlib.Path) -> None:
    """Writes a model with its optimizer, whole or not at all.

    Args:
        model: The model.
        path: The target; its suffix is the format.
    """
    if path.suffix == ".tf":
        _write_folder(model, path)
        return
    with written_atomically(path) as temporary:
        if path.name.endswith(".weights.h5"):
            model.save_weights(temporary, overwrite=True)
        else:
            model.save(temporary, overwrite=True)
        add_checksum(temporary)


def _write_folder(model, path):
    temporary = path.with_name(f".{path.name}.writing-{secrets.token_hex(4)}")
    temporary.mkdir(parents=True)
    try:
        _tensorflow_checkpoint(model).write(os.fspath(temporary / "state"))
        digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in temporary.iterdir()}
        (temporary / _DIGESTS).write_text(json.dumps(digests), encoding="utf-8")
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
    before = model_states.read_arrays(model)
    try:
        with _no_part_skipped():
            _load(model, path)
    except Exception as error:
        model_states.set_arrays(model, before)
        raise CheckpointError(
            message(
                "A checkpoint is restored into a model with the same architecture and optimizer, all of it or nothing.",
                f"path={os.fspath(path)!r}, model={model.name!r}: {str(error).strip().splitlines()[0][:300]}",
                "the model that was saved, built and compiled as then",
            )
        ) from error


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


@contextlib.contextmanager
def _no_part_skipped() -> Iterator[None]:
    # Keras warns, and goes on with half of a model
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(Skipping variable loading|could not be loaded|not loaded).*")
        yield


def _load(model, path):
    if model.optimizer is not None and not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
    if path.is_dir():
        _tensorflow_checkpoint(model).read(os.fspath(path / "state")).assert_consumed()
        return
    model.load_weights(os.fspath(path))
    if path.suffix == ".h5" and not path.name.endswith(".weights.h5"):
        _load_optimizer(model, path)


def _load_optimizer(model, path):
    # what Keras leaves alone when it loads weights from its legacy format
    variables = [] if model.optimizer is None else model.optimizer.variables
    with h5py.File(path, "r") as file:
        group = file.get("optimizer_weights", {})
        names = [] if not group else list(group.attrs["weight_names"])
        values = [np.asarray(group[name.decode() if isinstance(name, bytes) else name]) for name in names]
    if len(values) != len(variables) or any(a.shape != tuple(v.shape) for a, v in zip(values, variables, strict=True)):
        raise ValueError(f"the optimizer has {len(variables)} variables, the file {len(values)}, or of other shapes")
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def first_readable(model: keras.Model, saved: Sequence[Saved], folder: str) -> Saved:
    """Restores the first checkpoint that is not damaged, with a warning for each that is.

    Args:
        model: The model.
        saved: Checkpoints, in the order in which they are tried.
        folder: For messages.

    Returns:
        The checkpoint that was restored.

    Raises:
        CheckpointError: There is none, or it is of another model.
    """
    damaged: list[Any] = []
    for one in saved:
        try:
            restore(model, pathlib.Path(one.path))
        except Unreadable as error:
            damaged.append(f"{os.path.basename(one.path)}: {error}")
            continue
        if damaged:
            warnings.warn(
                f"A damaged checkpoint was passed over, {os.path.basename(one.path)} was restored. Damaged: "
                f"{'; '.join(damaged)}\nWhat to do: remove what is damaged; if it happens again, check the disk.",
                stacklevel=3,
            )
        return one
    raise CheckpointError(
        message(
            "To restore from a folder there must be a checkpoint in it that can be read.",
            f"folder={folder!r}, checkpoints={len(saved)}; damaged: {damaged}",
            "the folder that `Checkpoint` wrote to, with the same `format` and `keep`",
        )
    )
