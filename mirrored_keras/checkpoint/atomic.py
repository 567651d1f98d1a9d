"""Files that readers see whole or not at all: a temporary file beside the target, then one rename."""

import contextlib
import os
import pathlib
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator

#: Suffixes that Keras tells formats by; the longest first.
SUFFIXES = (".weights.h5", ".keras", ".hdf5", ".h5")
#: What another machine's process left behind is removed after this time; whether it lives cannot be asked.
_SECONDS_UNTIL_FOREIGN_IS_STALE = 24 * 3600.0
_HOST = re.sub(r"[^A-Za-z0-9]", "", socket.gethostname())[:32] or "localhost"


@contextlib.contextmanager
def written_atomically(path: str | os.PathLike[str]) -> Iterator[str]:
    """Gives the name of a temporary file that replaces `path` when the block ends without an error.

    The temporary file lies in the same folder and ends with the same suffix. It is flushed to the disk before
    it takes the place of the target, and the folder after it, so that a crash or a power cut at any moment
    leaves the old file or the new one, whole. On an error it is removed and the target stays as it is.
    What killed processes left behind for this target is removed first.

    Args:
        path: The target; missing folders are made, and a link is followed.

    Yields:
        The name to write to.

    Raises:
        IsADirectoryError: The target is a folder.
        OSError: The disk is full, the folder cannot be written to, and so on.
    """
    target = pathlib.Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"A file is to be written where there is a folder: {os.fspath(path)!r}")
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_left_behind(target)
    temporary = target.with_name(f"{_prefix(target)}{_HOST}-{os.getpid()}-{secrets.token_hex(4)}{_suffix(target.name)}")
    try:
        yield os.fspath(temporary)
        if target.exists():
            shutil.copymode(target, temporary)
        _flush(temporary)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush(target.parent)


def remove_left_behind(target: pathlib.Path) -> None:
    """Removes the temporary files of processes that were killed while they wrote a target.

    Args:
        target: The target.
    """
    parts = re.compile(re.escape(_prefix(target)) + r"([A-Za-z0-9]+)-(\d+)-[0-9a-f]{8}(\.[a-z0-9.]+)?")
    for entry in list(os.scandir(target.parent)):
        match = parts.fullmatch(entry.name)
        if match and _is_stale(entry, host=match[1], process=int(match[2])):
            pathlib.Path(entry.path).unlink(missing_ok=True)


def _is_stale(entry, *, host, process):
    if host != _HOST:
        with contextlib.suppress(FileNotFoundError):
            return time.time() - entry.stat().st_mtime > _SECONDS_UNTIL_FOREIGN_IS_STALE
        return False
    try:
        os.kill(process, 0)  # sends nothing; asks whether the process lives
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # it lives, and is another user's
    return False


def _prefix(target):
    return f".{target.name}.writing-"


def _suffix(name):
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def _flush(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
