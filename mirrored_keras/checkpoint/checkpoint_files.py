"""The checkpoints in one folder: their names, which say all about them, and which of them can be read."""

import os
import pathlib
import re
import shutil
import urllib.parse
import warnings
from collections.abc import Sequence
from typing import Any

import keras

from mirrored_keras.checkpoint.checkpoint_content import Unreadable, restore
from mirrored_keras.checkpoint.policies import Saved
from mirrored_keras.errors import CheckpointError, message

FORMATS = (".keras", ".weights.h5", ".h5", "tf")
_NAME = re.compile(r"checkpoint-(\d{6,})-(\d{9,})((?:-[^-=]+=[^=]+?)*)(\.keras|\.weights\.h5|\.h5|\.tf)")
_METRIC = re.compile(r"-([^-=]+)=([^=]+?)(?=-[^-=]+=|$)")


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
