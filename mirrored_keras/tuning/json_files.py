"""JSON files that survive: written whole or not at all, with a copy that stands in for a damaged one."""

import json
import os
import pathlib
import warnings
from typing import Any

from mirrored_keras.checkpoint.atomic import written_atomically
from mirrored_keras.errors import CheckpointError, message


def write(path: str | os.PathLike[str], content: Any, *, copy: bool = True) -> str:
    """Writes a JSON file at once.

    Args:
        path: The file.
        content: What JSON can hold.
        copy: Whether a hidden copy is written beside it.

    Returns:
        The text.
    """
    text = json.dumps(content)
    with written_atomically(path) as temporary:
        pathlib.Path(temporary).write_text(text, encoding="utf-8")
    if copy:
        # after the file: a kill between the two leaves a file that is newer, and whole. Not flushed to the disk, which
        # takes longer than all the rest
        beside = _copy_of(path)
        temporary = beside.with_name(f"{beside.name}.{os.getpid()}")
        pathlib.Path(temporary).write_text(text, encoding="utf-8")
        os.replace(temporary, beside)
    return text


def read(path: str | os.PathLike[str]) -> Any:
    """Reads a JSON file; its copy, with a warning, if the file is damaged.

    Args:
        path: The file.

    Returns:
        Its content.

    Raises:
        CheckpointError: Neither the file nor a copy of it can be read.
    """
    try:
        return _parsed(path)
    except ValueError as error:
        cause = error
    try:
        content = _parsed(_copy_of(path))
    except (OSError, ValueError):
        size = os.path.getsize(path)
        raise CheckpointError(
            message(
                "A search goes on from JSON files that are whole.",
                f"path={os.fspath(path)!r}, size={size} bytes, and no copy of it; {cause}",
                "restore the file from a copy; or search again: overwrite=True, or another project_name",
            )
        ) from cause
    with written_atomically(path) as temporary:
        pathlib.Path(temporary).write_text(json.dumps(content), encoding="utf-8")
    warnings.warn(
        f"{os.fspath(path)} was damaged ({cause}) and has been restored from its copy.\n"
        "What to do: nothing; if it happens again, check the disk.",
        stacklevel=2,
    )
    return content


def read_or(path: str | os.PathLike[str], default: Any) -> Any:
    """Reads a JSON file that need not be there.

    Args:
        path: The file.
        default: What is returned without it.

    Returns:
        Its content.

    Raises:
        CheckpointError: The file is damaged.
    """
    return read(path) if os.path.exists(path) else default


def _parsed(path):
    return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))


def _copy_of(path):
    path = pathlib.Path(path)
    return path.with_name(f".{path.name}.copy")
