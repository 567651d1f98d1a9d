"""One file per training state: arrays and a JSON text in HDF5, written at once, with a checksum."""

import contextlib
import json
import os
import pathlib
import re
import warnings
from typing import Any, NamedTuple

import h5py
import numpy as np
import tensorflow as tf

from mirrored_keras.checkpoint.atomic import written_atomically
from mirrored_keras.checkpoint.checksum import add_checksum, check_checksum
from mirrored_keras.errors import CheckpointError, message

VERSION = 1
_NAME = re.compile(r"state-(\d{6,})-(\d{9,})\.h5")


class State(NamedTuple):
    """What a file holds: a header that JSON can hold, and arrays by name; and the file."""

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]
    path: pathlib.Path


class StateFiles:
    """The states in one folder, the newest of which are kept.

    Args:
        folder: The folder; made when the first state is written.
        keep: How many files are kept.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int):
        self._folder = pathlib.Path(folder)
        self._keep = keep

    @property
    def folder(self) -> str:
        """The folder."""
        return os.fspath(self._folder)

    def paths(self) -> list[pathlib.Path]:
        """Returns the files, the newest first: by epoch and step, which their names carry."""
        found = [(match, path) for path in self._folder.glob("state-*.h5") if (match := _NAME.fullmatch(path.name))]
        return [path for _, path in sorted(found, key=lambda pair: (int(pair[0][1]), int(pair[0][2])), reverse=True)]

    def newest(self) -> State | None:
        """Reads the newest file that can be read; a damaged one is set aside, with a warning.

        Returns:
            The state; `None` where there is no file at all.

        Raises:
            CheckpointError: There are files, and none of them can be read.
        """
        damaged = []
        for path in self.paths():
            try:
                state = read(path)
            except (CheckpointError, OSError, KeyError, ValueError) as error:
                damaged.append((path, str(error).splitlines()[0]))
                continue
            for broken, why in damaged:
                aside = broken.with_name(broken.name + ".damaged")
                with contextlib.suppress(FileNotFoundError):  # another worker was faster
                    os.replace(broken, aside)
                warnings.warn(
                    f"{broken.name} cannot be read ({why}) and was renamed to {aside.name}; training goes on from "
                    f"the state before it, {path.name}.\nWhat to do: nothing; if it happens again, check the disk.",
                    stacklevel=2,
                )
            return state
        if damaged:
            raise CheckpointError(
                message(
                    "A folder with training states must have one that can be read.",
                    f"folder={os.fspath(self._folder)!r}; {'; '.join(f'{path.name}: {why}' for path, why in damaged)}",
                    "restore the folder from a copy, or start anew in an empty one: Resume('another_folder')",
                )
            )
        return None

    def write(self, header: dict[str, Any], arrays: dict[str, np.ndarray], *, epoch: int, step: int) -> None:
        """Writes a state and removes those that need not be kept.

        Args:
            header: What JSON can hold.
            arrays: Arrays by name.
            epoch: Epochs that are finished.
            step: Steps of the next one that are done.
        """
        path = self._folder / f"state-{epoch:06d}-{step:09d}.h5"
        write(path, header, arrays)
        kept = [path, *(other for other in self.paths() if other != path)][: self._keep]
        for other in self.paths():
            if other not in kept:
                other.unlink(missing_ok=True)


def write(path: pathlib.Path, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Writes one state, whole or not at all.

    Args:
        path: The file.
        header: What JSON can hold.
        arrays: Arrays by name.
    """
    kinds = {name: np.asarray(array).dtype.name for name, array in arrays.items()}
    text = json.dumps({"version": VERSION, "dtypes": kinds, "header": header})
    with written_atomically(path) as temporary:
        with h5py.File(temporary, "w") as file:
            # attributes of HDF5 end at 64 KiB
            file["json"] = np.frombuffer(text.encode(), np.uint8)
            for index, array in enumerate(arrays.values()):
                file[f"arrays/{index}"] = _as_bytes_where_needed(np.asarray(array))
        add_checksum(temporary)


def _as_bytes_where_needed(array):
    if array.dtype.kind in "biufcS":
        return array
    if array.dtype.kind == "U":
        return np.frombuffer(array.tobytes(), np.uint8).reshape(*array.shape, array.itemsize)
    return np.ascontiguousarray(array).reshape(*array.shape, 1).view(np.uint8)  # bfloat16 and its like


def read(path: pathlib.Path) -> State:
    """Reads one state.

    Args:
        path: The file.

    Returns:
        The state.

    Raises:
        CheckpointError: The file is damaged, or of a newer version of the package.
    """
    check_checksum(path)
    with h5py.File(path, "r") as file:
        content = json.loads(bytes(file["json"][()]).decode())
        if content["version"] != VERSION:
            raise CheckpointError(
                message(
                    "A training state is read by the version of the package that wrote it, or a newer one.",
                    f"path={os.fspath(path)!r}, format={content['version']}, known={VERSION}",
                    "pip install --upgrade mirrored-keras",
                )
            )
        stored = [file[f"arrays/{index}"][()] for index in range(len(content["dtypes"]))]
    kinds = content["dtypes"]
    arrays = {name: _as_dtype(array, kind) for (name, kind), array in zip(kinds.items(), stored, strict=True)}
    return State(content["header"], arrays, path)


def _as_dtype(array, kind):
    if array.dtype.name == kind:
        return array
    dtype = np.dtype(f"U{int(kind[3:]) // 32}") if kind.startswith("str") else tf.as_dtype(kind).as_numpy_dtype
    return np.ascontiguousarray(array).view(dtype).reshape(array.shape[:-1])
