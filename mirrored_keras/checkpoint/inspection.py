"""Looks at a file before anything is read from it: is it whole, is it what its name says, is it safe?"""

import os
import pathlib
import zipfile
from typing import Any

import h5py

from mirrored_keras.checkpoint import checksum
from mirrored_keras.checkpoint.archive import opened_weights
from mirrored_keras.checkpoint.contents import read_extra
from mirrored_keras.errors import CheckpointError, message

SUFFIXES = (".keras", ".h5", ".hdf5")
#: A part may be this many times as large in memory as in the file; zeros compress about 1000 to 1.
_LARGEST_GROWTH = 1100
_SMALL = 1 << 24


def check_path(path: str | os.PathLike[str], *, suffixes: tuple[str, ...] = SUFFIXES) -> str:
    """Refuses names that say no known format.

    Args:
        path: The file.
        suffixes: The known endings.

    Returns:
        The path as text.

    Raises:
        CheckpointError: The name has another ending, or belongs to another file system.
    """
    name = os.fsdecode(path)
    if "://" in name:
        raise CheckpointError(
            message(
                "Files are written and read on a local file system, where a rename replaces a file at once.",
                f"path={name!r}",
                f'save_model(model, "/tmp/model.keras"), then tf.io.gfile.copy("/tmp/model.keras", {name!r})',
            )
        )
    if not name.endswith(suffixes):
        raise CheckpointError(
            message(
                f"The end of the name says the format: {' or '.join(suffixes)}.",
                f"path={name!r}",
                f'"{pathlib.PurePath(name).stem or "model"}{suffixes[0]}"',
            )
        )
    return name


def check_file(
    path: str, *, verify: bool = True, shapes: dict[str, tuple[int, ...]] | None = None
) -> dict[str, Any] | None:
    """Refuses a file that is missing, damaged, something else than its name says, or unsafe to read.

    Args:
        path: A file with a name of a known format.
        verify: Whether its checksum is compared.
        shapes: Takes name -> shape of every array in it.

    Returns:
        What `read_extra` finds in it.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointError: Every other reason; the message names it.
    """
    if not os.path.exists(path):
        folder = pathlib.Path(path).parent
        there = sorted(entry.name for entry in folder.glob("*") if entry.suffix in SUFFIXES) if folder.is_dir() else []
        found = f"it holds {', '.join(there[:5])}" if there else "no model file is there"
        raise FileNotFoundError(f"There is no file {path!r}; in that folder, {found}.")
    _check_kind(path)
    summed = checksum.has_checksum(path)
    if summed and verify:
        checksum.check_checksum(path)
    try:
        extra = read_extra(path)
        if zipfile.is_zipfile(path):
            _check_archive(path)
        with opened_weights(path) as file:
            _check_group(path, file, "", {} if shapes is None else shapes)
    except CheckpointError:
        raise
    except Exception as error:  # whatever the readers of zip, HDF5 and JSON say
        raise damaged(path, f"{type(error).__name__}: {error}") from error
    if extra is not None and not summed and verify:
        raise damaged(path, "it states that it has a checksum, and has none: its end is missing, or it was edited")
    return extra


def damaged(path: str, reason: str) -> CheckpointError:
    """Returns the error for a file whose bytes cannot be what was saved.

    Args:
        path: The file.
        reason: What was found.

    Returns:
        The error.
    """
    return CheckpointError(
        message(
            "A file must hold the bytes that were written: this one is damaged.",
            f"path={path!r}, size={os.path.getsize(path)} bytes; {' '.join(reason.split())[:300]}",
            "restore the file from a copy, load an older one, or copy it again from where it came from",
        )
    )


def _check_kind(path):
    if os.path.isdir(path):
        raise CheckpointError(message("A model is one file.", f"path={path!r}, which is a folder", "path/model.keras"))
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(512)
    expected = b"PK\x03\x04" if path.endswith(".keras") else b"\x89HDF\r\n\x1a\n"
    if head.startswith(expected):
        return
    if not size:
        raise damaged(path, "the file is empty")
    if head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise damaged(path, "it is a web page: the download gave an error page in place of the file")
    if head.startswith(b"version https://git-lfs"):
        raise damaged(path, "it is a pointer of Git LFS: run `git lfs pull`")
    for other, name in ((b"PK\x03\x04", ".keras"), (b"\x89HDF\r\n\x1a\n", ".h5 or .weights.h5")):
        if head.startswith(other):
            raise CheckpointError(
                message(
                    "The end of a file's name says its format.",
                    f"path={path!r}, which holds a file of the format {name}",
                    f"rename it to end with {name}",
                )
            )
    raise damaged(path, f"it begins with {head[:16]!r}, which is no {'zip archive' if b'PK' in expected else 'HDF5'}")


def _check_archive(path):
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            parts = info.filename.replace("\\", "/").split("/")
            if ".." in parts or parts[0] == "" or ":" in parts[0]:
                raise _unsafe(path, f"a member that leads out of the archive: {info.filename!r}")
            if info.file_size > _SMALL and info.file_size > _LARGEST_GROWTH * max(info.compress_size, 1):
                raise _unsafe(path, f"member {info.filename!r} of {info.compress_size} bytes grows to {info.file_size}")


def _check_group(path, group, name, shapes):
    for key in group:
        full = f"{name}/{key}"
        # HDF5's own functions: the objects that h5py makes of each link and setting take longer than all the rest
        if group.id.links.get_info(key.encode()).type != h5py.h5l.TYPE_HARD:
            target = getattr(group.get(key, getlink=True), "filename", "another place")
            raise _unsafe(path, f"{full!r} is a link to {target!r}")
        part = group[key]
        if isinstance(part, h5py.Group):
            _check_group(path, part, full, shapes)
        elif isinstance(part, h5py.Dataset):
            _check_dataset(path, part, full)
            shapes[full[1:]] = part.shape


def _check_dataset(path, dataset, name):
    settings = dataset.id.get_create_plist()
    if settings.get_external_count() or settings.get_layout() == h5py.h5d.VIRTUAL:
        raise _unsafe(path, f"{name!r} keeps its numbers in another file")
    stored = dataset.id.get_storage_size()
    if dataset.nbytes > _SMALL and dataset.nbytes > _LARGEST_GROWTH * max(stored, 1):
        raise _unsafe(path, f"{name!r} of {stored} bytes grows to {dataset.nbytes}")


def _unsafe(path, what):
    return CheckpointError(
        message(
            "A file holds its own numbers and nothing that reaches out of it or grows without measure.",
            f"path={path!r} with {what}",
            "do not use this file; ask where it comes from",
        )
    )
