"""The index beside the shards: what the records hold, how many there are, and the checksums of the files."""

import dataclasses
import json
import os
import pathlib
import re
from typing import Any

from mirrored_keras.checkpoint.atomic import written_atomically
from mirrored_keras.data import features
from mirrored_keras.data.features import Feature
from mirrored_keras.errors import DataError, message

_FORMAT = "mirrored-keras TFRecord index"
_VERSION = 1
_SHARD = re.compile(r"(?P<prefix>.+)-\d{5,}-of-\d{5,}\.tfrecord")


@dataclasses.dataclass(frozen=True)
class Shard:
    """One file of records.

    Args:
        name: File name, without the folder.
        rows: Number of records.
        bytes: Size of the file.
        sha256: Checksum of the file, as `sha256sum` prints it.
    """

    name: str
    rows: int
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Index:
    """What is in a set of shards: row i of the data is record i // N of shard i % N, for N shards.

    Args:
        schema: The features of a record by name.
        shards: The files, in order.
        record_bytes: Bytes of all records together, uncompressed.
        compression: `""`, `"GZIP"` or `"ZLIB"`.
        complete: Whether all shards are written.

    Example:
        >>> from mirrored_keras.data import Feature
        >>> Index({"label": Feature("int64")}, (Shard("a-00000-of-00001.tfrecord", 3, 90, ""),), 42).rows
        3
    """

    schema: dict[str, Feature]
    shards: tuple[Shard, ...] = ()
    record_bytes: int = 0
    compression: str = ""
    complete: bool = True

    @property
    def rows(self) -> int:
        """Number of records in all shards."""
        return sum(shard.rows for shard in self.shards)


def shard_name(prefix: str, shard: int, shards: int) -> str:
    """Returns the file name of a shard.

    Args:
        prefix: Name of the data set, such as `"train"`.
        shard: Number of the shard, from 0 on.
        shards: Number of shards.
    """
    return f"{prefix}-{shard:05}-of-{shards:05}.tfrecord"


def index_name(prefix: str) -> str:
    """Returns the file name of the index of a data set.

    Args:
        prefix: Name of the data set.
    """
    return f"{prefix}.index.json"


def prefix_of_shard(name: str) -> str | None:
    """Returns the data set that a file belongs to by its name.

    Args:
        name: The file's name or path.

    Returns:
        The prefix, or `None` where the name is not that of a shard.
    """
    match = _SHARD.fullmatch(name.rsplit("/", 1)[-1])
    return match["prefix"] if match else None


def is_remote(path: str) -> bool:
    """Returns whether a path is one of another file system, such as `gs://bucket/folder`.

    Args:
        path: The path.
    """
    return "://" in path


def remove_old(path: str) -> None:
    """Removes a file of another file system: some of these keep the old bytes behind or before the new ones.

    Args:
        path: The file, or where none is yet.
    """
    import tensorflow as tf

    if tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)


def write_index(folder: str, prefix: str, index: Index) -> None:
    """Writes an index, whole or not at all.

    Args:
        folder: Where the shards are.
        prefix: Name of the data set.
        index: What to write.
    """
    content: dict[str, Any] = {"format": _FORMAT, "version": _VERSION, **dataclasses.asdict(index)}
    content["schema"] = features.to_json(index.schema)
    text = json.dumps(content, indent=1) + "\n"
    path = f"{folder}/{index_name(prefix)}"
    if is_remote(path):
        import tensorflow as tf

        remove_old(path)
        with tf.io.gfile.GFile(path, "w") as file:
            file.write(text)
    else:
        with written_atomically(path) as temporary:
            pathlib.Path(temporary).write_text(text, encoding="utf-8")


def read_index(path: str) -> Index:
    """Reads an index.

    Args:
        path: The file.

    Returns:
        What it says, also if it is not complete.

    Raises:
        DataError: It is not an index, or one of a newer version.
    """
    import tensorflow as tf

    with tf.io.gfile.GFile(path, "r") as file:
        text = file.read()
    try:
        content = json.loads(text)
        if content["format"] != _FORMAT or content["version"] > _VERSION:
            raise ValueError(f"format={content['format']!r}, version={content['version']}")
        return Index(
            schema=features.from_json(content["schema"]),
            shards=tuple(Shard(**shard) for shard in content["shards"]),
            record_bytes=content["record_bytes"],
            compression=content["compression"],
            complete=content["complete"],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            message(
                "The index beside the shards must be one that `write_tfrecords` wrote.",
                f"path={path!r}: {type(error).__name__}: {error}",
                f"os.remove({path!r}) and pass `schema`, or write the records again",
            )
        ) from None


def find_index(files: list[str]) -> tuple[str, Index] | None:
    """Finds the index that all of some files belong to.

    Args:
        files: Paths of shards.

    Returns:
        The path of the index and what it says; `None` where there is none, or where the files are of several sets.

    Raises:
        DataError: The index is damaged, or says that the shards were not written to the end.
    """
    import tensorflow as tf

    paths = {(os.path.dirname(file), prefix_of_shard(file)) for file in files}
    (folder, prefix) = next(iter(paths))
    path = os.path.join(folder, index_name(prefix or ""))
    if len(paths) > 1 or prefix is None or not tf.io.gfile.exists(path):
        return None
    index = read_index(path)
    if not index.complete:
        raise DataError(
            message(
                "All shards of a data set must be written before it is read; the writer of these was stopped.",
                f"path={path!r}, which is not complete",
                "call `write_tfrecords` again: it writes all of them anew",
            )
        )
    return path, index
