"""What our files hold beside what Keras writes: one JSON text in `.keras`, `.h5` and `.weights.h5`.

Plain Keras passes over it: the comment of the zip archive, a further group of the HDF5 file.
"""

import base64
import json
import os
import zipfile
import zlib
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

import mirrored_keras
from mirrored_keras import DistributedModel
from mirrored_keras.checkpoint.checksum import LENGTH
from mirrored_keras.checkpoint.model_states import description_of
from mirrored_keras.checkpoint.optimizer_state import facts_of

FORMAT = 1
_NAME = "mirrored_keras"
_MEMBER = f"{_NAME}.json"
_COMMENT = f"{_NAME}:".encode()
_LONGEST_COMMENT = 65535 - LENGTH  # what a zip archive can state, less the checksum


def extra_of(model: keras.Model, more: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns what a file of a model holds beside what Keras writes.

    Args:
        model: Any Keras model.
        more: Further entries that JSON can hold.

    Returns:
        Format, versions, number of replicas, what the model consists of, and the states of the seed generators.
    """
    return {
        "format": FORMAT,
        "mirrored_keras": mirrored_keras.__version__,
        "keras": keras.__version__,
        "replicas": model.distribute_strategy.num_replicas_in_sync,
        "description": description_of(model),
        "optimizer": facts_of(model),
        "random_state": DistributedModel.get_random_state(model),
        **(more or {}),
    }


def write_extra(path: str, extra: dict[str, Any]) -> None:
    """Adds the entries to a file that Keras has written.

    Args:
        path: A `.keras` or HDF5 file.
        extra: From `extra_of`.
    """
    text = json.dumps(extra).encode()
    if zipfile.is_zipfile(path):
        # with a fourth member, Keras would unpack the whole archive to the disk when it loads the file
        comment = _COMMENT + base64.b85encode(zlib.compress(text)) + b"\n"
        with zipfile.ZipFile(path, "a") as archive:
            if len(comment) <= _LONGEST_COMMENT:
                archive.comment = comment
            else:
                archive.writestr(_MEMBER, text)
        return
    with h5py.File(path, "a") as file:
        # a dataset: an attribute may have 64 kB at most
        file.create_group(_NAME).create_dataset("json", data=np.frombuffer(text, np.uint8))


def read_extra(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Returns the entries of a file, `None` if Keras alone wrote it.

    Args:
        path: A `.keras` or HDF5 file.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if archive.comment.startswith(_COMMENT):
                coded = archive.comment[len(_COMMENT) :].partition(b"\n")[0]
                return json.loads(zlib.decompress(base64.b85decode(coded)))
            return json.loads(archive.read(_MEMBER)) if _MEMBER in archive.namelist() else None
    with h5py.File(path, "r") as file:
        return json.loads(file[f"{_NAME}/json"][()].tobytes()) if _NAME in file else None


def restore_random_state(model: keras.Model, extra: dict[str, Any] | None) -> None:
    """Lets the model's random layers go on where they were saved; draws without a seed are the process's own.

    Args:
        model: A model with as many seed generators.
        extra: From `read_extra`.
    """
    if extra is not None:
        DistributedModel.set_random_state(model, [*extra["random_state"][:-1], []])


def expected_bytes(model: keras.Model) -> int:
    """Returns an upper bound of the size of a model's file, in bytes.

    Args:
        model: The model.

    Returns:
        Its variables, those of its optimizer, and 8 kB for the names of each.
    """
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *(optimizer.variables if optimizer is not None else ())]
    sizes = [int(np.prod(v.shape)) * tf.as_dtype(v.dtype).size + 8192 for v in variables]
    return sum(sizes) + (1 << 18)
