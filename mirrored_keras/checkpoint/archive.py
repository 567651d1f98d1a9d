"""The HDF5 file inside a `.keras` archive, opened where it lies, without unpacking it."""

import contextlib
import io
import struct
import zipfile
from collections.abc import Iterator

import h5py

WEIGHTS = "model.weights.h5"
_LOCAL_HEADER = struct.Struct("<26xHH")  # lengths of name and further fields, before the data of a member


class _Slice(io.RawIOBase):
    """A part of a file as a file of its own, for reading."""

    def __init__(self, path: str, start: int, size: int):
        self._file = open(path, "rb")  # noqa: SIM115  (closed by `close`)
        self._start, self._length, self._position = start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer) -> int:
        wanted = memoryview(buffer).cast("B")[: max(0, self._length - self._position)]
        self._file.seek(self._start + self._position)
        count = self._file.readinto(wanted)
        self._position += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


@contextlib.contextmanager
def opened_weights(path: str) -> Iterator[h5py.File]:
    """Opens the weights of a `.keras`, `.h5` or `.weights.h5` file.

    Args:
        path: The file.

    Yields:
        The open HDF5 file.
    """
    if not path.endswith(".keras"):
        with h5py.File(path, "r") as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(WEIGHTS)
        if info.compress_type != zipfile.ZIP_STORED:
            with archive.open(info) as member, h5py.File(member, "r") as file:
                yield file
            return
    with open(path, "rb") as raw:
        raw.seek(info.header_offset)
        lengths = _LOCAL_HEADER.unpack(raw.read(_LOCAL_HEADER.size))
    start = info.header_offset + _LOCAL_HEADER.size + sum(lengths)
    with _Slice(path, start, info.file_size) as part, h5py.File(part, "r") as file:
        yield file
