"""Files that readers see whole or not at all: a temporary file beside the target, then one rename."""

import contextlib
import errno
import os
import pathlib
import re
import secrets
import shutil
import socket
import time
import zlib
from collections.abc import Iterator

from mirrored_keras.errors import CheckpointError, message

#: What another machine's process left behind is removed after this time; whether it lives cannot be asked.
_SECONDS_UNTIL_FOREIGN_IS_STALE = 24 * 3600.0
_LONGEST_NAME = 60
_HOST = re.sub(r"[^A-Za-z0-9]", "", socket.gethostname())[:32] or "localhost"


@contextlib.contextmanager
def written_atomically(path: str | os.PathLike[str], *, expected_bytes: int = 0) -> Iterator[str]:
    """Gives the name of a temporary file that replaces `path` when the block ends without an error.

    The temporary file has the target's name and lies in a hidden folder beside it, where everything that its
    writer may leave behind lies too. It is flushed to the disk before it takes the place of the target, and
    the folder after it, so that a crash or a power cut at any moment leaves the old file or the new one, whole.
    On an error the target stays as it is. What killed processes left behind for this target is removed first.

    Args:
        path: The target; missing folders are made, and a link is followed.
        expected_bytes: Reserved for a moment beforehand: HDF5 does not survive a disk that fills up under it.

    Yields:
        The name to write to.

    Raises:
        CheckpointError: The target is a folder.
        OSError: The disk is full, the folder cannot be written to, and so on.
    """
    target = pathlib.Path(os.path.realpath(path))
    if target.is_dir():
        raise CheckpointError(
            message(
                "A file is written to the name of a file.",
                f"path={os.fspath(path)!r}, which is a folder",
                'save_model(model, "folder/model.keras")',
            )
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_left_behind(target)
    folder = target.with_name(f"{_prefix(target)}{_HOST}-{os.getpid()}-{secrets.token_hex(4)}")
    folder.mkdir()
    temporary = folder / target.name
    try:
        _reserve(temporary, expected_bytes)
        yield os.fspath(temporary)
        if target.exists():
            shutil.copymode(target, temporary)
        _flush(temporary)
        os.replace(temporary, target)
        _flush(target.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left_behind(target: pathlib.Path) -> None:
    """Removes what processes left behind that were killed while they wrote a target.

    Args:
        target: The target.
    """
    parts = re.compile(re.escape(_prefix(target)) + r"([A-Za-z0-9]+)-(\d+)-[0-9a-f]{8}")
    for entry in list(os.scandir(target.parent)):
        match = parts.fullmatch(entry.name)
        if match and _is_stale(entry, host=match[1], process=int(match[2])):
            shutil.rmtree(entry.path, ignore_errors=True)


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


def _reserve(path, size):
    if not size:
        return
    try:
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(error.errno, f"{os.strerror(error.errno)}: {size} bytes are needed", str(path)) from error
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
    finally:
        path.unlink(missing_ok=True)


def _prefix(target):
    name = target.name
    if len(name) > _LONGEST_NAME:  # a name has 255 bytes at most
        name = f"{name[:40]}-{zlib.crc32(name.encode()):08x}"
    return f".{name}.writing-"


def _flush(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
