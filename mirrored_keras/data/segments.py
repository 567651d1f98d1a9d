"""Runs of records of one file that are read one behind the other: a whole file, or what lies between damaged records.

Every record comes with its position, so that a message can name it.
"""

from typing import NamedTuple

import tensorflow as tf

from mirrored_keras.data.index import is_remote
from mirrored_keras.data.parsing import RECORDS, UNREADABLE

# Large reads for a few files; together no more than this for many
_BUFFER_BYTES = 1 << 20
_ALL_BUFFERS_BYTES = 1 << 26
_SMALLEST_BUFFER_BYTES = 1 << 16


class Segment(NamedTuple):
    """Some records of a file.

    Args:
        file: Number of the file.
        first: Number of the first record in the file.
        rows: Number of records.
        offset: First byte of the first record; -1 where it is not known, in compressed files.
    """

    file: int
    first: int
    rows: int
    offset: int


def raw_records(path: tf.Tensor, compression: tf.Tensor, segment: Segment, *, buffer_bytes: int) -> tf.data.Dataset:
    """Returns the records of a segment, and of what follows it in the file.

    Args:
        path: The file.
        compression: Of the file.
        segment: With numbers or tensors.
        buffer_bytes: Of the reader.

    Returns:
        A dataset of serialized records.
    """
    if isinstance(segment.offset, int) and segment.offset <= 0:
        records = tf.data.TFRecordDataset(path, compression, buffer_bytes)
        return records if isinstance(segment.first, int) and segment.first == 0 else records.skip(segment.first)
    # Public, but without a function of its own: reading from a byte on.
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path],
        compression_type=compression,
        buffer_size=tf.constant(buffer_bytes, tf.int64),
        byte_offsets=[tf.cast(segment.offset, tf.int64)],
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec((), tf.string))


def positioned_records(
    paths: list[str],
    compression: list[str],
    segments: list[Segment],
    *,
    cycle: int = 1,
    shuffle: tuple[int, int] | None = None,
    buffered: bool = True,
) -> tf.data.Dataset:
    """Returns the records of segments with their positions, in an order that is always the same.

    Args:
        paths: Files by number.
        compression: Of each of them.
        segments: What is read.
        cycle: From how many segments records are taken in turn: 1 reads one behind the other.
        shuffle: Buffer and seed of a new order of the segments in every pass. `None` keeps their order.
        buffered: Whether more is read than a record at a time.

    Returns:
        A dataset of `(position, record)`. Records that cannot be read are `UNREADABLE`.
    """
    buffer_bytes = max(_SMALLEST_BUFFER_BYTES, min(_BUFFER_BYTES, _ALL_BUFFERS_BYTES // cycle)) if buffered else 0
    # What is known of all segments is left out of the graph: every operation costs time for every record.
    by_offset = any(segment.offset > 0 for segment in segments)
    whole = all(segment.first == 0 for segment in segments)
    single = all(segment.rows == 1 for segment in segments)
    columns = tuple(tf.constant(column, tf.int64) for column in zip(*segments, strict=True))
    order = tf.data.Dataset.from_tensor_slices(columns)
    if shuffle is not None:
        order = order.shuffle(shuffle[0], seed=shuffle[1])

    def records_of(*numbers):
        segment = Segment(*numbers)
        segment = segment if by_offset else segment._replace(offset=-1)
        segment = segment._replace(first=0) if whole else segment
        path = tf.gather(tf.constant(paths), segment.file)
        compressed = tf.gather(tf.constant(compression), segment.file)
        records = raw_records(path, compressed, segment, buffer_bytes=buffer_bytes)
        # The reader's own error names no file, and it gives up the file: the parser says what was wrong where.
        unreadable = tf.data.Dataset.range(segment.rows).map(lambda _: tf.constant(UNREADABLE))
        records = records.ignore_errors(log_warning=True).concatenate(unreadable)
        if single:
            records = records.take(1)  # `zip` reads one record more than it needs
        start = segment.file * RECORDS + segment.first
        return tf.data.Dataset.zip((tf.data.Dataset.range(start, start + segment.rows), records))

    if cycle == 1:
        records = order.flat_map(records_of)
    else:
        # Waiting for a network is shared out to threads; for local files threads cost more than they gain.
        parallel_calls = cycle if any(map(is_remote, paths)) else None
        records = order.interleave(records_of, cycle, block_length=1, num_parallel_calls=parallel_calls)
    rows = sum(segment.rows for segment in segments)
    # Trainers need the number: with an unknown length Keras runs one step without data at the end of every epoch.
    return records.apply(tf.data.experimental.assert_cardinality(rows))
