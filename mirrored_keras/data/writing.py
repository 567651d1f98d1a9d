"""Writes rows into TFRecord shards with an index; a reader sees all of them or none."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from mirrored_keras.checkpoint.atomic import written_atomically
from mirrored_keras.data import index as indices
from mirrored_keras.data.encoding import Encoder
from mirrored_keras.data.features import Schema, check_schema
from mirrored_keras.data.index import Index, Shard, is_remote, shard_name
from mirrored_keras.data.rows import Rows
from mirrored_keras.errors import DataError, message

if TYPE_CHECKING:
    import tensorflow as tf

_ROWS_PER_MESSAGE = 256


def write_tfrecords(
    data: Any | Iterable[Any] | tf.data.Dataset,
    folder: str | os.PathLike[str],
    *,
    prefix: str = "data",
    schema: Schema | None = None,
    shards: int = 4,
    compression: Literal["", "GZIP", "ZLIB"] = "",
    overwrite: bool = False,
    verbose: int = 1,
) -> Index:
    """Writes rows into N shards, row i into shard i % N, and an index with schema, counts and checksums.

    The data are read once, row by row. A shard takes its name when it is whole, and the index says last that all are:
    a writer that was killed is started again, and until then the files are refused by readers.

    Args:
        data: An array; `(x, y)` or `(x, y, sample_weight)` of arrays, which get these names; a dictionary of arrays or
            lists; an iterable of rows or a function that returns one, where a row is a dictionary, a tuple or a value;
            or a `tf.data.Dataset` of rows, not of batches.
        folder: Where the files go; it is made where it is missing. May be `gs://...` and the like.
        prefix: First part of the file names: `data-00000-of-00004.tfrecord`. Defaults to `"data"`.
        schema: Type, shape and encoding of each feature. `None` takes those of the arrays, or of the first row: numbers
            as lists, arrays as raw bytes. Rows of different length need a `Feature` with `None` in its shape.
        shards: Number of files. More than the replicas read in parallel need not be. Defaults to 4.
        compression: `""`, `"GZIP"` or `"ZLIB"`. Defaults to `""`.
        overwrite: Whether a complete data set of this prefix may be replaced. Defaults to `False`.
        verbose: 1 shows a progress bar. Defaults to 1.

    Returns:
        The index.

    Raises:
        DataError: A row does not fit the schema (the message has its number), there are no rows, or a data set is
            there already.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from mirrored_keras.data import write_tfrecords
        >>> images = np.zeros((10, 28, 28), np.uint8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     index = write_tfrecords({"image": images, "label": np.arange(10)}, folder, shards=2, verbose=0)
        >>> index.rows, [shard.rows for shard in index.shards], index.schema["image"]
        (10, [5, 5], Feature('uint8', (28, 28), 'raw'))
    """
    _check_options(prefix, shards, compression)
    target = _checked_folder(folder)
    rows = Rows(data)
    given = check_schema(schema) if schema is not None else rows.schema
    _check_is_free(target, prefix, overwrite)

    def begin_to_replace():
        # until all is written, an index that says so keeps readers off a mixture of old and new shards
        indices.write_index(target, prefix, Index({}, complete=False))

    names = [shard_name(prefix, number, shards) for number in range(shards)]
    if is_remote(target):
        begin_to_replace()  # nothing is renamed there: shards are seen as they are written
    progress = _Progress(rows.total, verbose=verbose)
    written = _write_shards(rows, given, target, names, compression, progress=progress, before_rename=begin_to_replace)
    _remove_other_shards(target, prefix, {shard.name for shard in written.shards})
    indices.write_index(target, prefix, written)
    return written


class _Progress:
    """A bar that is drawn every few rows: drawing costs more than a row."""

    def __init__(self, total, *, verbose):
        import keras

        self._bar = keras.utils.Progbar(total, verbose=verbose, unit_name="row")

    def __call__(self, rows, *, ended=False):
        if ended or rows % _ROWS_PER_MESSAGE == 0:
            self._bar.update(rows, finalize=ended)


def _write_shards(rows, schema, folder, names, compression, *, progress, before_rename):
    counts, record_bytes, number = [0] * len(names), 0, -1
    with contextlib.ExitStack() as files:
        paths = [_enter(files, f"{folder}/{name}") for name in names]
        encoder = Encoder(schema)
        with _writers(paths, compression) as writers:
            for number, row in enumerate(rows):
                record = encoder(row, number)
                writers[number % len(names)].write(record)
                counts[number % len(names)] += 1
                record_bytes += len(record)
                progress(number + 1)
        if number < 0:
            raise DataError(message("There must be a row to write.", "data of no rows", "if len(images) > 0: ..."))
        shards = tuple(
            Shard(name, count, *size_and_sha256(path)) for name, count, path in zip(names, counts, paths, strict=True)
        )
        before_rename()
    progress(number + 1, ended=True)
    return Index(encoder.schema, shards, record_bytes, compression)


@contextlib.contextmanager
def _writers(paths, compression):
    import tensorflow as tf

    with contextlib.ExitStack() as closing:
        yield [closing.enter_context(tf.io.TFRecordWriter(path, compression)) for path in paths]


def _enter(files, path):
    if is_remote(path):
        indices.remove_old(path)
        return path
    return files.enter_context(written_atomically(path))


def size_and_sha256(path: str) -> tuple[int, str]:
    """Returns the size and the checksum of a file.

    Args:
        path: The file.
    """
    import tensorflow as tf

    digest, size = hashlib.sha256(), 0
    with tf.io.gfile.GFile(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def _check_options(prefix, shards, compression):
    if (
        not isinstance(prefix, str)
        or not re.fullmatch(r"[^./\s][^/]*", prefix)
        or isinstance(shards, bool)
        or not isinstance(shards, int)
        or shards < 1
        or compression not in ("", "GZIP", "ZLIB")
    ):
        raise DataError(
            message(
                "`prefix` begins a file name, `shards` is a positive integer, `compression` is '', 'GZIP' or 'ZLIB'.",
                f"prefix={prefix!r}, shards={shards!r}, compression={compression!r}",
                'write_tfrecords(data, "folder", prefix="train", shards=4)',
            )
        )


def _checked_folder(folder):
    import tensorflow as tf

    path = os.fsdecode(folder) if isinstance(folder, (str, bytes, os.PathLike)) else ""
    target = path.rstrip("/") or path[:1]  # of "/" something must be left
    if not target or (tf.io.gfile.exists(target) and not tf.io.gfile.isdir(target)):
        raise DataError(
            message(
                "Records are written into a folder: one that is there, or the path of a new one.",
                f"folder={folder!r}",
                'write_tfrecords(data, "folder", prefix="train")',
            )
        )
    return target


def _check_is_free(folder, prefix, overwrite):
    import tensorflow as tf

    path = f"{folder}/{indices.index_name(prefix)}"
    if not tf.io.gfile.exists(path):
        tf.io.gfile.makedirs(folder)
    elif not overwrite and indices.read_index(path).complete:
        raise DataError(
            message(
                "A complete data set is not replaced unless that is asked for.",
                f"path={path!r}, which is complete",
                "overwrite=True, or another `prefix` or folder",
            )
        )


def _remove_other_shards(folder, prefix, names):
    """Removes the shards of an earlier set of this prefix with another number of them: a pattern would read both."""
    import tensorflow as tf

    for name in tf.io.gfile.listdir(folder):
        if name not in names and indices.prefix_of_shard(name) == prefix:
            tf.io.gfile.remove(f"{folder}/{name}")
