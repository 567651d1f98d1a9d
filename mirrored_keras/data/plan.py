"""What is to be read: files, schema, records; everything that can be wrong before the first record is read."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from mirrored_keras.data import index as indices
from mirrored_keras.data import record_files
from mirrored_keras.data.features import Feature, check_schema
from mirrored_keras.data.index import Index
from mirrored_keras.data.record_files import RecordFile
from mirrored_keras.data.segments import Segment
from mirrored_keras.errors import DataError, message

_LARGE_RECORD_BYTES = 1 << 16


@dataclasses.dataclass
class Plan:
    """What is to be read.

    Args:
        paths: Files by number.
        compression: Of each of them.
        segments: The records.
        record_bytes: Bytes of all of them, uncompressed.
        schema: What they hold.
        in_turn: Whether the rows were dealt out to the files in turn.
    """

    paths: list[str]
    compression: list[str]
    segments: list[Segment]
    record_bytes: int
    schema: dict[str, Feature]
    in_turn: bool = False

    @property
    def rows(self) -> int:
        """Number of records."""
        return sum(segment.rows for segment in self.segments)

    @property
    def has_large_records(self) -> bool:
        """Whether a record is so large that what is done with each of them costs little beside copying it."""
        return self.record_bytes / self.rows >= _LARGE_RECORD_BYTES

    def single_records(self) -> list[Segment] | None:
        """Returns every record as a segment of its own, or `None` where nobody knows where they begin."""
        if any(self.compression) or any(map(indices.is_remote, self.paths)):
            return None
        offsets = [record_files.scan(path).offsets for path in self.paths]
        return [
            Segment(segment.file, record, 1, offsets[segment.file][record])
            for segment in self.segments
            for record in range(segment.first, segment.first + segment.rows)
        ]


def make_plan(files: Any, schema: Mapping[str, Feature] | None, *, errors: str) -> Plan:
    """Finds files, index, schema and records.

    Args:
        files: What the user named.
        schema: What the user declared, or `None`.
        errors: `"raise"`, or `"skip"` to leave out what cannot be read: then all records are read once before.

    Returns:
        The plan.

    Raises:
        DataError: There is nothing, or something that cannot be read.
    """
    paths = record_files.find_files(files)
    if schema is not None:
        schema = check_schema(schema)
    _refuse_several_sets(files, paths)
    found = indices.find_index(paths)
    if found and schema is None:
        schema = found[1].schema
    elif found:
        _check_names(schema, found)
    if found and errors == "raise":
        return _plan_of_index(paths, *found, schema)
    scanned = [record_files.scan(path) for path in paths]
    if errors == "raise":
        refuse_damaged(scanned)
        _refuse_other_messages(scanned)
    if schema is None:
        from mirrored_keras.data.inferring import infer_schema

        schema = infer_schema(scanned)
    if errors == "raise":
        segments = [whole(number, file) for number, file in enumerate(scanned)]
    else:
        from mirrored_keras.data.checking import good_segments

        segments = good_segments(scanned, schema)
    size = sum(file.record_bytes for file in scanned)
    plan = Plan(paths, [file.compression for file in scanned], [s for s in segments if s.rows], size, schema)
    if found and len(plan.segments) == len(paths) == len(found[1].shards):
        plan.in_turn = [segment.rows for segment in plan.segments] == [shard.rows for shard in found[1].shards]
    if not plan.rows:
        raise DataError(
            message(
                "There must be at least one record.",
                f"{len(paths)} files without a record that can be read, {paths[0]!r} first",
                "write_tfrecords(data, folder)",
            )
        )
    return plan


def whole(number: int, file: RecordFile) -> Segment:
    """Returns all records of a file.

    Args:
        number: Of the file.
        file: The file.
    """
    return Segment(number, 0, file.rows, 0)


def refuse_damaged(files: list[RecordFile]) -> None:
    """Refuses files that do not end with a whole record.

    Args:
        files: What was found.

    Raises:
        DataError: One of them is damaged.
    """
    for file in files:
        if file.problem:
            raise DataError(
                message(
                    "A file must hold whole records to its end.",
                    f"path={file.path!r}, record {file.rows}: {file.problem}",
                    'a copy of the file; or errors="skip" to read the records that are whole',
                )
            )


def _refuse_several_sets(files, paths):
    """Refuses a folder that holds, say, training and test data: that they are read together is hardly meant."""
    files = os.fsdecode(files) if isinstance(files, (str, bytes, os.PathLike)) else None
    if files is None or paths == [files]:
        return
    folders = {(os.path.dirname(path), indices.prefix_of_shard(path)) for path in paths}
    names = sorted(
        prefix
        for folder, prefix in folders
        if prefix and tf.io.gfile.exists(os.path.join(folder, indices.index_name(prefix)))
    )
    if len(names) > 1:
        raise DataError(
            message(
                "Of a folder with several data sets, one is read at a time.",
                f"files={files!r}, data sets={names}",
                f'"{files}/{names[0]}-*", or a list of files to read them together',
            )
        )


def _refuse_other_messages(files):
    """Looks at the first record of each file: TensorFlow's parser names neither file nor record for what it is not."""
    from mirrored_keras.data.inferring import features_of

    for file in files:
        for record in tf.data.TFRecordDataset(file.path, file.compression).ignore_errors().take(min(file.rows, 1)):
            features_of(record.numpy(), file.path, 0)


def _plan_of_index(paths, path, index: Index, schema):
    shards = {shard.name: shard for shard in index.shards}
    chosen = []
    for file in paths:
        shard = shards.get(os.path.basename(file))
        size = tf.io.gfile.stat(file).length
        if shard is None or shard.bytes != size:
            expected = "no file of this name" if shard is None else f"{shard.bytes} bytes"
            raise DataError(
                message(
                    "Files must be those that their index lists, in the size that it states.",
                    f"path={file!r} of {size} bytes, where {path!r} lists {expected}",
                    "a copy of the file, or write the records again; without the index file the records are counted",
                )
            )
        chosen.append(shard)
    segments = [Segment(number, 0, shard.rows, 0) for number, shard in enumerate(chosen)]
    rows = sum(shard.rows for shard in chosen)
    return Plan(
        paths,
        [index.compression] * len(paths),
        [segment for segment in segments if segment.rows],
        index.record_bytes * rows // max(index.rows, 1),
        schema,
        in_turn=tuple(chosen) == index.shards,
    )


def _check_names(schema, found):
    path, index = found
    missing = sorted(schema.keys() - index.schema.keys())
    if missing:
        raise DataError(
            message(
                "The features of `schema` must be in the records.",
                f"missing={missing}, where {path!r} lists {sorted(index.schema)}",
                "leave out `schema`, or name features that are there",
            )
        )
