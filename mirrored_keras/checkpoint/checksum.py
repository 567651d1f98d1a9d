"""A checksum of a whole file, in its own last bytes, where `.h5` and `.keras` files carry it unharmed.

HDF5 ignores what follows its last block, and a zip archive may end with a comment. The last 64 bytes are
mark (16), checksum of everything before them (32), mark (16). The checksum is the SHA-256 of the size and of the
CRC-32 sums of all pieces of 4 MiB: a CRC-32 finds every error of up to 32 bits in a row and all but one in 4 * 10^9 of
the others, takes half the time of a SHA-256, and several cores can share the pieces.
"""

import concurrent.futures
import hashlib
import os
import zipfile
import zlib

from mirrored_keras.errors import CheckpointError, message

_MARK = b"mirrored-keras\x00\x01"
LENGTH = 2 * len(_MARK) + hashlib.sha256().digest_size
_PIECE = 1 << 22
_BLOCK = 1 << 18  # what fits into the cache of a core
_THREADS = 4


def add_checksum(path: str | os.PathLike[str]) -> None:
    """Writes the checksum of a finished `.keras` or HDF5 file into its end.

    Args:
        path: The file; it has no checksum yet.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path, "a") as archive:
            archive.comment += bytes(LENGTH)  # the archive states the length of what follows it
        size = os.path.getsize(path) - LENGTH
    else:
        size = os.path.getsize(path)
    digest = _digest(path, size)
    with open(path, "r+b") as file:
        file.seek(size)
        file.write(_MARK + digest + _MARK)


def has_checksum(path: str | os.PathLike[str]) -> bool:
    """Returns whether a file ends with a checksum, right or wrong.

    Args:
        path: The file.
    """
    end = _end(path)
    return end.startswith(_MARK) or end.endswith(_MARK)


def check_checksum(path: str | os.PathLike[str]) -> None:
    """Compares a file with the checksum at its end.

    Args:
        path: The file.

    Raises:
        CheckpointError: They differ.
    """
    size = os.path.getsize(path)
    if size < LENGTH or _end(path) != _MARK + _digest(path, size - LENGTH) + _MARK:
        raise CheckpointError(
            message(
                "A file must hold the bytes that were written: this one was damaged after it was saved.",
                f"path={os.fspath(path)!r}, size={size} bytes, which do not have the checksum that the file states",
                "restore the file from a copy, or load an older one",
            )
        )


def _end(path):
    size = os.path.getsize(path)
    if size < LENGTH:
        return b""
    with open(path, "rb") as file:
        file.seek(size - LENGTH)
        return file.read()


def _digest(path, size):
    starts = range(0, size, _PIECE)
    if len(starts) <= 1:
        sums = [_crc_of_piece(path, 0, size)]
    else:
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
            sums = list(threads.map(lambda start: _crc_of_piece(path, start, min(_PIECE, size - start)), starts))
    return hashlib.sha256(b"".join(number.to_bytes(8, "little") for number in (size, *sums))).digest()


def _crc_of_piece(path, start, size):
    crc, block = 0, memoryview(bytearray(min(_BLOCK, max(size, 1))))
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while size > 0:
            count = file.readinto(block[: min(len(block), size)])
            if not count:
                break
            crc = zlib.crc32(block[:count], crc)
            size -= count
    return crc
