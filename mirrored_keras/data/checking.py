"""Reads all records once and says which of them cannot be used, and why."""

import dataclasses
import logging
import os
import re
from collections.abc import Mapping, Sequence

import tensorflow as tf

from mirrored_keras.data import parsing, record_files
from mirrored_keras.data.features import Feature
from mirrored_keras.data.record_files import RecordFile
from mirrored_keras.data.segments import Segment, raw_records

_LOGGER = logging.getLogger("mirrored_keras")
_RECORDS_AT_ONCE = 256
_REPORTED = 20
# a decoder's message has nothing of ours but the name of its node
_DECODER = re.compile(r"node \S*?feature_(\w+)\.mirrored-keras")


@dataclasses.dataclass(frozen=True)
class BadRecord:
    """A record that cannot be used.

    Args:
        file: The file.
        record: Its number in the file, from 0 on.
        reason: What is wrong.
    """

    file: str
    record: int
    reason: str


def check_tfrecords(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    schema: Mapping[str, Feature] | None = None,
) -> list[BadRecord]:
    """Reads all records once, as training would, and returns those that cannot be used.

    What follows a record of wrong length, and in compressed files what follows any damage, cannot be found; it is
    reported as one record.

    Args:
        files: A folder, a pattern, a file, or a list of these.
        schema: What the records hold. `None` takes it from the index, else from the records.

    Returns:
        The bad records, in the order of the files.

    Raises:
        DataError: There are no files, or one that is no TFRecord file.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from mirrored_keras.data import check_tfrecords, write_tfrecords
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     index = write_tfrecords({"x": np.zeros((5, 2))}, folder, verbose=0)
        ...     check_tfrecords(folder)
        []
    """
    from mirrored_keras.data import index as indices
    from mirrored_keras.data.inferring import infer_schema

    paths = record_files.find_files(files)
    scanned = [record_files.scan(path) for path in paths]
    found = indices.find_index(paths)
    schema = schema or (found[1].schema if found else infer_schema(scanned))
    return _check(scanned, schema)[0]


def good_segments(files: list[RecordFile], schema: Mapping[str, Feature]) -> list[Segment]:
    """Returns the records that can be used, and logs how many cannot.

    Args:
        files: What was found.
        schema: What the records hold.
    """
    bad, segments = _check(files, schema)
    if bad:
        lines = [f"{record.file} record {record.record}: {record.reason}" for record in bad[:_REPORTED]]
        lines += ["..."] if len(bad) > _REPORTED else []
        rows = sum(segment.rows for segment in segments)
        _LOGGER.warning(
            'errors="skip": %d of %d records are left out:\n%s', len(bad), rows + len(bad), "\n".join(lines)
        )
    return segments


def _check(files, schema):
    places = [file.path for file in files], [file.compression for file in files]
    parser = parsing.make_parser(schema, *places)
    at_once = 1 if parsing.decodes_one_by_one(schema) else _RECORDS_AT_ONCE
    known = 1 if at_once == 1 else None
    signature = (tf.TensorSpec((known,), tf.int64), tf.TensorSpec((known,), tf.string))
    parse = tf.function(parser, input_signature=signature).get_concrete_function()
    bad, segments = [], []
    for number, file in enumerate(files):
        bad_of_file, good = _check_file(number, file, parse, at_once)
        bad += bad_of_file
        segments += good
    return bad, segments


def _check_file(number, file, parse, at_once):
    bad, start = [], 0
    while start < file.rows:
        read = start
        for records in _records_from(file, start).batch(at_once):
            bad += _bad_of(records.numpy(), (number, read), parse, file)
            read += len(records)
        if read < file.rows:
            bad.append(BadRecord(file.path, read, "the record does not have its checksum (CRC)"))
        start = read + 1
    segments = _between(number, file, [record.record for record in bad])
    if file.problem:
        bad.append(BadRecord(file.path, file.rows, file.problem))
    return bad, segments


def _records_from(file, start):
    offset = file.offsets[start] if file.offsets else -1
    segment = Segment(0, start, file.rows - start, offset)

    def records(_):
        # Inside a function: TensorFlow cannot make a graph of a dataset that begins at a byte.
        return raw_records(tf.constant(file.path), tf.constant(file.compression), segment, buffer_bytes=1 << 20)

    return tf.data.Dataset.range(1).flat_map(records).ignore_errors().take(file.rows - start)


def _bad_of(records, place, parse, file):
    number, first = place
    start = number * parsing.RECORDS + first
    try:
        parse(tf.range(start, start + len(records), dtype=tf.int64), tf.constant(records))
        return []
    except (tf.errors.OpError, UnicodeDecodeError) as error:  # the second where TensorFlow quotes the bytes
        if len(records) == 1:
            return [BadRecord(file.path, first, reason_of(error))]
    half = len(records) // 2
    return _bad_of(records[:half], place, parse, file) + _bad_of(records[half:], (number, first + half), parse, file)


def reason_of(error: Exception) -> str:
    """Returns what is wrong with a record, in one line.

    Args:
        error: What parsing it raised.
    """
    text = str(getattr(error, "message", error))
    if "Could not parse example" in text or isinstance(error, UnicodeDecodeError):
        return "the record is no serialized tf.train.Example"
    if "Received: " in text:
        return text.split("Received: ")[1].split(" What to do: ")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    decoder = _DECODER.search(text)
    if decoder:
        return f"feature={decoder[1]}, which cannot be decoded"
    named = [line for line in lines if line.startswith("Name: ")]
    return (named or [line for line in lines if not line.startswith(("Graph execution", "Detected at"))] or [text])[0]


def _between(number, file, bad):
    """Returns the segments between the bad records of a file."""
    segments, start = [], 0
    for stop in [*bad, file.rows]:
        if stop > start:
            segments.append(Segment(number, start, stop - start, file.offsets[start] if file.offsets else -1))
        start = stop + 1
    return segments
