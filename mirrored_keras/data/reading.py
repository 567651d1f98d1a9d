"""Reads TFRecord files as global batches, parsed before they are shared out to replicas.

Shapes: G is the number of rows in the global batch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import tensorflow as tf

from mirrored_keras.data import parsing
from mirrored_keras.data.arguments import check_arguments, share_of
from mirrored_keras.data.features import Feature
from mirrored_keras.data.index import is_remote
from mirrored_keras.data.plan import Plan, make_plan
from mirrored_keras.data.segments import positioned_records
from mirrored_keras.data.selection import make_selector
from mirrored_keras.errors import DataError, message

_LOGGER = logging.getLogger("mirrored_keras")
_LARGEST_SHUFFLE_BYTES = 1 << 30
_MOST_FILES_IN_TURN = 256
_FILES_MIXED = 16
_BATCHES_AHEAD = 2


def tfrecord_dataset(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    schema: Mapping[str, Feature] | None = None,
    *,
    global_batch_size: int,
    inputs: str | Sequence[str] | Mapping[str, str] | None = None,
    targets: str | Sequence[str] | Mapping[str, str] | None = None,
    sample_weight: str | None = None,
    shuffle: bool | int = False,
    seed: int = 0,
    repeat: bool | int = False,
    tail: Literal["keep", "drop", "pad"] = "keep",
    map: Callable[..., Any] | None = None,
    map_rows: Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]] | None = None,
    errors: Literal["raise", "skip"] = "raise",
    shard: tuple[int, int] | None = None,
    input_context: tf.distribute.InputContext | None = None,
    parallel_calls: int | None = None,
) -> tf.data.Dataset:
    """Reads TFRecord files as global batches of parsed rows.

    Every row comes once in a pass. Without `shuffle` the rows come as `write_tfrecords` got them, else in an order that
    the seed, the files and the number of the pass decide (and `tf.random.set_seed`, as always in `tf.data`), in every
    process and on any number of workers.

    Args:
        files: A folder, a glob pattern, a file, or a list of these; local or `gs://...`; plain, GZIP or ZLIB.
        schema: What the records hold, and which of it is read. `None` takes it from the index, else from the records.
        global_batch_size: Rows of a batch, over all replicas and workers together.
        inputs: The feature, or the features as a list or a dictionary, that are the inputs of a model. With it the
            dataset gives `(x,)`, `(x, y)` or `(x, y, sample_weight)`, without it a dictionary of all features.
        targets: Likewise the targets.
        sample_weight: The feature that is the weight of a row.
        shuffle: `True` shuffles all rows, or as many as 1 GiB of raw records holds; a number is that of the rows
            in the buffer. Records of 64 KiB and more are read in shuffled order, without a buffer, from local files
            that are not compressed. Every pass has another order. Defaults to `False`.
        seed: Seed of the orders. Defaults to 0.
        repeat: `True` repeats for ever, a number as often. Batches do not reach from pass to pass. Defaults to `False`.
        tail: What becomes of the rows that fill no batch: `"keep"` gives a short batch; `"drop"` leaves them out,
            others in every shuffled pass; `"pad"` fills up with copies of rows of weight 0. Defaults to `"keep"`.
        map: Function of the parts of a batch, as in `tf.data.Dataset.map`.
        map_rows: Function from the dictionary of a row to a dictionary, for what must be done before rows are of one
            shape. Runs in parallel, for shuffled rows.
        errors: `"skip"` reads all records once before, and leaves out those that cannot be used; the log of
            `mirrored_keras` has their number and the reasons. Defaults to `"raise"`.
        shard: `(i, n)`: of each global batch the rows i, i + n, ... for worker i of n. `fit` shares out by itself.
        input_context: Likewise for `strategy.distribute_datasets_from_function`; batches are then those of a replica.
        parallel_calls: Batches or rows parsed at once. `None` is one per core.

    Returns:
        A dataset of known length. Tensors have shape `(G, *shape)` with all of `shape` known, and G known but for
        `tail="keep"` with a remainder; features of different length are ragged.

    Raises:
        DataError: No files, a foreign, cut or changed file, or a schema that is missing or cannot be.
        BatchError: An argument that cannot be.
        tf.errors.InvalidArgumentError: While reading: a record that is damaged, or does not fit the schema. The message
            names file, record and feature.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from mirrored_keras.data import tfrecord_dataset, write_tfrecords
        >>> folder = tempfile.mkdtemp()
        >>> rows = {"image": np.zeros((10, 28, 28), np.uint8), "label": np.arange(10)}
        >>> index = write_tfrecords(rows, folder, verbose=0)
        >>> data = tfrecord_dataset(folder, global_batch_size=4, inputs="image", targets="label")
        >>> [len(y) for x, y in data]
        [4, 4, 2]
    """
    check_arguments(global_batch_size=global_batch_size, shuffle=shuffle, seed=seed, repeat=repeat, tail=tail,
                    errors=errors, parallel_calls=parallel_calls)  # fmt: skip
    share = share_of(global_batch_size, shard, input_context)
    plan = make_plan(files, schema, errors=errors)
    select = make_selector(plan.schema, inputs, targets, sample_weight, pad=tail == "pad", mapped=map_rows is not None)
    rows = _with_tail(_ordered(plan, shuffle, seed), plan, global_batch_size, tail)
    rows_of_share = len(range(share.worker, int(rows.cardinality()), share.workers))
    if share.workers > 1:
        rows = rows.shard(share.workers, share.worker)
    parallel_calls = parallel_calls or os.cpu_count() or 1

    def finish(positions, features):
        batch = select(features, positions)
        return batch if map is None else map(*batch) if isinstance(batch, tuple) else map(batch)

    all_full = rows_of_share % share.rows == 0
    batches = _batches(rows, plan, share.rows, map_rows, finish, parallel_calls=parallel_calls, all_full=all_full)
    if repeat:
        batches = batches.repeat(None if repeat is True else repeat)
    return batches.prefetch(_BATCHES_AHEAD).with_options(_options())


def _ordered(plan: Plan, shuffle, seed):
    """Returns the positions and records of a pass."""
    buffered = not plan.has_large_records
    if shuffle is False:
        cycle = min(len(plan.segments), _MOST_FILES_IN_TURN) if plan.in_turn else 1
        return positioned_records(plan.paths, plan.compression, plan.segments, cycle=cycle, buffered=buffered)
    # Large records are not kept in a buffer: their places are shuffled, and each is read where it is.
    singles = plan.single_records() if plan.has_large_records else None
    if singles is not None:
        _LOGGER.info("Shuffling the places of %d rows: no raw records in memory.", plan.rows)
        return positioned_records(
            plan.paths,
            plan.compression,
            singles,
            cycle=2,  # faster than 1 by a tenth; parallel reading costs more of the processor than it gains
            shuffle=(plan.rows if shuffle is True else shuffle, seed),
            buffered=False,
        )
    buffer = _rows_in_buffer(plan, shuffle)
    mixed = buffer < plan.rows
    side_by_side = min(len(plan.segments), _FILES_MIXED)
    records = positioned_records(
        plan.paths,
        plan.compression,
        plan.segments,
        cycle=side_by_side if mixed or any(map(is_remote, plan.paths)) else 1,
        shuffle=(len(plan.segments), seed) if mixed else None,
    )
    return records.shuffle(buffer, seed=seed)


def _rows_in_buffer(plan, shuffle):
    row_bytes = max(plan.record_bytes / plan.rows, 1)
    buffer = min(plan.rows, max(1, int(_LARGEST_SHUFFLE_BYTES / row_bytes)) if shuffle is True else shuffle)
    size = buffer * row_bytes / 1e6
    _LOGGER.info("Shuffling %d of %d rows at a time: %.1f MB of raw records in memory.", buffer, plan.rows, size)
    return buffer


def _with_tail(records, plan: Plan, batch, tail):
    """Returns the rows of a pass; what fills them up has negative positions."""
    if tail == "drop":
        if plan.rows < batch:
            raise DataError(
                message(
                    "There must be rows for one batch where the rest is dropped.",
                    f'rows={plan.rows}, global_batch_size={batch}, tail="drop"',
                    'tail="keep", or a smaller batch',
                )
            )
        return records.take(plan.rows - plan.rows % batch)
    missing = -plan.rows % batch
    if tail == "pad" and missing:
        # copies of the first rows: what is computed from real rows is finite where the model is
        first = positioned_records(plan.paths, plan.compression, plan.segments)
        first = first if missing <= plan.rows else first.repeat()
        filling = first.take(missing).map(lambda position, record: (-1 - position, record))
        return records.concatenate(filling)
    return records


def _batches(rows, plan: Plan, size, map_rows, finish, *, parallel_calls, all_full):
    """Returns a dataset of what `finish` makes of the positions and the features of a batch."""
    # Large records one by one: parsing several at once copies them once more.
    if not (plan.has_large_records or map_rows or parsing.decodes_one_by_one(plan.schema)):
        parse = parsing.make_parser(plan.schema, plan.paths, plan.compression)
        batches = rows.batch(size, drop_remainder=all_full)
        return batches.map(lambda positions, records: finish(positions, parse(positions, records)), parallel_calls)
    parse_row = parsing.make_row_parser(plan.schema, plan.paths, plan.compression)

    def prepare(position, record):
        row = parse_row(position, record)
        return position, map_rows(row) if map_rows else row

    parsed = rows.map(prepare, parallel_calls)
    _check_is_dictionary(parsed.element_spec[1])
    shapes = tf.nest.map_structure(lambda spec: spec.shape, parsed.element_spec[1])
    _check_shapes(shapes)
    equal = all(shape.is_fully_defined() for shape in shapes.values())
    batch = parsed.batch if equal else parsed.ragged_batch
    return batch(size, drop_remainder=all_full).map(finish, parallel_calls)


def _check_is_dictionary(row):
    if not isinstance(row, dict) or not row:
        raise DataError(
            message(
                "`map_rows` makes a dictionary of features from the dictionary of a row.",
                f"map_rows={type(row).__name__}",
                'map_rows=lambda row: {**row, "image": tf.image.resize(row["image"], (224, 224))}',
            )
        )


def _check_shapes(shapes):
    for name, shape in shapes.items():
        if shape.rank is None or not shape[1:].is_fully_defined():
            raise DataError(
                message(
                    "Rows must have one shape before they become a batch; only their first dimension may vary.",
                    f"feature={name!r}, shape={shape}",
                    'map_rows=lambda row: {**row, "image": tf.image.resize(row["image"], (224, 224))}',
                )
            )


def _options():
    options = tf.data.Options()
    options.deterministic = True
    # Measuring every operation for autotuning costs as much as reading and parsing small records.
    options.autotune.enabled = False
    # Several workers share the rows, not the files: all of them read the same order and leave out what is not theirs.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return options
