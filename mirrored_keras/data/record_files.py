"""TFRecord files as bytes: which there are, how they are compressed, and where their records begin.

A record is its length (8 bytes), a checksum of the length (4), the data, and a checksum of the data (4). The lengths
alone lead from record to record, so that records are counted without reading them.
"""

import dataclasses
import glob
import mmap
import os
import struct
import zlib
from collections.abc import Iterable
from typing import Any

from mirrored_keras.data.index import is_remote
from mirrored_keras.errors import DataError, message

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_HEADER = _LENGTH.size + _CHECKSUM.size
_FOOTER = _CHECKSUM.size
_PIECE_BYTES = 1 << 22
_POLYNOMIAL = 0x82F63B78  # CRC-32C, bits reversed


def _table():
    table = list(range(256))
    for _ in range(8):
        table = [(value >> 1) ^ (_POLYNOMIAL if value & 1 else 0) for value in table]
    return tuple(table)


_TABLE = _table()


@dataclasses.dataclass
class RecordFile:
    """A file, where its records begin, and where it stops being one.

    Args:
        path: The file.
        compression: `""`, `"GZIP"` or `"ZLIB"`.
        offsets: First byte of every record that is whole by its length; empty for compressed and remote files.
        rows: Number of these records.
        record_bytes: Bytes of the data of all of them.
        problem: What is wrong behind the last of them, else empty.
    """

    path: str
    compression: str
    offsets: list[int]
    rows: int
    record_bytes: int
    problem: str = ""


def find_files(files: Any) -> list[str]:
    """Returns the paths that a user means.

    Args:
        files: A path, a folder, a glob pattern, or several of these. Folders give their `.tfrecord` and
            `.tfrecords` files, also with `.gz` behind; hidden files are left out.

    Returns:
        The paths, each once: those of a folder or pattern sorted, those of a sequence in its order.

    Raises:
        DataError: There is no such file.
    """
    is_path = isinstance(files, (str, bytes, os.PathLike))
    given = list(files) if isinstance(files, Iterable) and not is_path else [files]
    known = [os.fsdecode(one) for one in given if isinstance(one, (str, bytes, os.PathLike))]
    found = [path for one in known for path in _paths(one)] if len(known) == len(given) else []
    if not found:
        raise DataError(
            message(
                "There must be at least one TFRecord file.",
                f"files={given[0] if is_path else given!r}, where there is none",
                'a folder with *.tfrecord files, a pattern such as "data/train-*.tfrecord", or a list of files',
            )
        )
    return list(dict.fromkeys(found))


def _paths(path):
    if is_remote(path):
        import tensorflow as tf

        if tf.io.gfile.isdir(path):
            names = [f"{path.rstrip('/')}/{name}" for name in sorted(tf.io.gfile.listdir(path))]
            return [name for name in names if _is_record_name(name) and not tf.io.gfile.isdir(name)]
        return sorted(tf.io.gfile.glob(path))
    if os.path.isdir(path):
        names = [name for name in sorted(os.listdir(path)) if _is_record_name(name) and name[0] != "."]
        return [joined for name in names if os.path.isfile(joined := os.path.join(path, name))]
    return [path] if os.path.isfile(path) else sorted(filter(os.path.isfile, glob.glob(path)))


def _is_record_name(name):
    return name.removesuffix(".gz").endswith((".tfrecord", ".tfrecords"))


def compression_of(path: str) -> str:
    """Returns how a file is compressed, by its first bytes.

    Args:
        path: The file.

    Returns:
        `""`, `"GZIP"` or `"ZLIB"`.

    Raises:
        DataError: It is neither a TFRecord file nor a compressed one.
    """
    import tensorflow as tf

    with tf.io.gfile.GFile(path, "rb") as file:
        start = file.read(_HEADER)
    if not start or _is_header(start, 0):
        return ""
    if start[:3] == b"\x1f\x8b\x08":
        return "GZIP"
    if start[0] == 0x78 and int.from_bytes(start[:2], "big") % 31 == 0:
        return "ZLIB"
    raise DataError(
        message(
            "A file of records must begin with the length of a record and its checksum.",
            f"path={path!r}, which begins with {start!r} at record 0",
            "remove the file from the folder, or name the record files by a pattern",
        )
    )


def scan(path: str) -> RecordFile:
    """Finds the records of a file without reading them, or counts them where it must be read for that.

    Args:
        path: The file.

    Returns:
        What is there; a cut or damaged end is named in its `problem`.

    Raises:
        DataError: It is not a TFRecord file.
    """
    compression = compression_of(path)
    if compression or is_remote(path):
        return _count(path, compression)
    if not os.path.getsize(path):
        return RecordFile(path, "", [], 0, 0)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        offsets, problem = _walk(data, checked=False)
        if problem:  # a wrong length may have led anywhere: find the first that its own checksum does not confirm
            offsets, problem = _walk(data, checked=True)
        size = len(data)
    end = size if not problem else (offsets.pop() if offsets else 0)
    return RecordFile(path, "", offsets, len(offsets), end - len(offsets) * (_HEADER + _FOOTER), problem)


def _walk(data, *, checked):
    """Returns where records begin, and what is wrong with the last of these, else an empty text."""
    offsets, position, size = [], 0, len(data)
    unpack = _LENGTH.unpack_from
    while position < size:
        offsets.append(position)
        if position + _HEADER > size:
            return offsets, f"the file is cut: it ends {size - position} bytes into the record"
        if checked and not _is_header(data, position):
            return offsets, "the length of the record does not have its checksum (CRC)"
        (length,) = unpack(data, position)
        position += _HEADER + length + _FOOTER
        if position > size:
            missing = position - size
            return offsets, f"the file is cut: {missing} bytes of the record's {length} and its checksum are missing"
    return offsets, ""


def _is_header(data, position):
    if len(data) < position + _HEADER:
        return False
    (stated,) = _CHECKSUM.unpack_from(data, position + _LENGTH.size)
    return stated == masked_crc(data[position : position + _LENGTH.size])


def masked_crc(data: bytes) -> int:
    """Returns the checksum that TFRecord files hold of some bytes.

    Args:
        data: The bytes.
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _count(path, compression):
    """Counts the records of a file that must be read for that, piece by piece."""
    file = RecordFile(path, compression, [], 0, 0)
    held, skipped = bytearray(), 0  # what is not counted yet, and how much of a record is still to come
    try:
        for piece in _pieces(path, compression):
            held += piece
            position = 0
            while len(held) - position >= _HEADER + skipped:
                position += skipped
                if not _is_header(held, position):
                    file.problem = "the length of the record does not have its checksum (CRC)"
                    return file
                (length,) = _LENGTH.unpack_from(held, position)
                position += _HEADER
                skipped = length + _FOOTER
                file.rows, file.record_bytes = file.rows + 1, file.record_bytes + length
            used = min(len(held) - position, skipped)
            skipped -= used
            del held[: position + used]
    except (EOFError, zlib.error) as error:
        file.problem = f"the file is cut or damaged: {error}"
    if skipped or held:
        file.problem = file.problem or "the file is cut in the record"
    return _without_last(file, skipped)


def _without_last(file, missing):
    # a record of which a part is missing has been counted
    if file.problem and missing and file.rows:
        file.rows -= 1
    return file


def _pieces(path, compression):
    import tensorflow as tf

    bits = {"GZIP": 31, "ZLIB": 15}
    with tf.io.gfile.GFile(path, "rb") as file:
        inflate = zlib.decompressobj(bits[compression]) if compression else None
        while piece := file.read(_PIECE_BYTES):
            yield inflate.decompress(piece) if inflate else piece
    if inflate and not inflate.eof:
        raise EOFError("the compressed data do not come to an end")
