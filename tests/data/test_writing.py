"""Shards and index appear together or not at all; a row that does not fit is refused with its number."""

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from data.record_sets import images
from mirrored_keras import DataError
from mirrored_keras.data import Feature, tfrecord_dataset, write_tfrecords


def values(folder):
    return [row for batch in tfrecord_dataset(folder, global_batch_size=4) for row in batch["x"].numpy().tolist()]


def refused(data, folder, **options):
    with pytest.raises(DataError) as caught:
        write_tfrecords(data, folder, verbose=0, **options)
    return str(caught.value)


def test_the_index_describes_the_files(tmp_path):
    returned = write_tfrecords({"x": images(5)}, tmp_path, prefix="train", shards=2, compression="GZIP", verbose=0)
    content = json.loads((tmp_path / "train.index.json").read_text())
    assert content["schema"] == {"x": {"dtype": "uint8", "shape": [4, 5], "encoding": "raw"}}
    assert (content["compression"], content["complete"], returned.rows) == ("GZIP", True, 5)
    for shard, rows in zip(content["shards"], (3, 2), strict=True):
        data = (tmp_path / shard["name"]).read_bytes()
        assert (shard["rows"], shard["bytes"]) == (rows, len(data))
        assert shard["sha256"] == hashlib.sha256(data).hexdigest()


def test_a_complete_set_is_replaced_only_on_demand(tmp_path):
    write_tfrecords({"x": np.arange(5)}, tmp_path, shards=3, verbose=0)
    assert "A complete data set is not replaced unless that is asked for." in refused({"x": np.arange(3)}, tmp_path)
    write_tfrecords({"x": np.arange(6)}, tmp_path, prefix="other", shards=1, verbose=0)
    write_tfrecords({"x": np.arange(7)}, tmp_path, shards=2, overwrite=True, verbose=0)
    assert sorted(os.listdir(tmp_path)) == [
        "data-00000-of-00002.tfrecord",
        "data-00001-of-00002.tfrecord",
        "data.index.json",
        "other-00000-of-00001.tfrecord",
        "other.index.json",
    ]
    assert values(f"{tmp_path}/data-*") == [*range(7)]


def test_a_row_that_does_not_fit_leaves_the_old_files(tmp_path):
    write_tfrecords({"x": np.arange(5.0)}, tmp_path, verbose=0)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    rows = ({"x": np.zeros(3 if row != 9 else 4, np.float32)} for row in range(20))
    assert refused(rows, tmp_path, overwrite=True) == (
        "Every row must have the type and shape that the schema says, or that the first row had.\n"
        "Received: row=9, feature='x': an array of shape (4,), where float32 of shape (3,) is expected\n"
        "What to do: correct the row; for rows of different length `None` as first size in a schema, "
        'Feature("float32", (None,))'
    )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("rows", "received"),
    [
        ([1, 2.5], "row=1, feature='x': float64, where int64"),
        ([1.5, "text"], "row=1, feature='x': str"),
        (["text", 1], "row=1, feature='x': int, where string"),
        ([np.uint8(3), 256], "row=1, feature='x': int64 from 256 to 256, where uint8"),
        ([[1, 2], [1, [2]]], "row=1, feature='x': a list of lists of different length"),
        ([np.float32(1), 2**24 + 1], "row=1, feature='x': int64 from 16777217 to 16777217, where float32"),
    ],
)
def test_values_of_another_type_are_refused(rows, received, tmp_path):
    assert received in refused(({"x": row} for row in rows), tmp_path)


def test_rows_of_other_features_are_refused(tmp_path):
    text = refused(iter([{"x": 1, "y": 2}, {"x": 1, "z": 2}]), tmp_path)
    assert "Received: row=1, missing=['y'], unknown=['z']\n" in text


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"x": np.arange(3), "y": np.arange(4)}, "rows of x=3, rows of y=4"),
        ("text", "Records are written from rows."),
        (iter([]), "There must be a row to write."),
        (iter([(1, (2, 3))]), "A row is a dictionary from names to values"),
        ({"x": np.array(3)}, "rows of x=None"),
    ],
)
def test_data_that_cannot_be(data, words, tmp_path):
    assert words in refused(data, tmp_path)
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize("options", [{"shards": 0}, {"prefix": "a/b"}, {"compression": "ZIP"}])
def test_options_that_cannot_be(options, tmp_path):
    assert "`prefix` begins a file name" in refused({"x": np.arange(3)}, tmp_path, **options)


def test_data_are_read_once(tmp_path):
    count = itertools.count()
    write_tfrecords(({"x": next(count)} for _ in range(10)), tmp_path, schema={"x": Feature("int32")}, verbose=0)
    assert next(count) == 10
    assert values(tmp_path) == [*range(10)]


WRITER = """
import sys, time
from mirrored_keras.data import write_tfrecords
def rows():
    for row in range(1000000):
        if row == 500:
            print("writing", flush=True)
        if row > 500:
            time.sleep(0.01)
        yield {"x": row}
write_tfrecords(rows, sys.argv[1], verbose=0)
"""


def test_a_killed_writer_leaves_nothing_that_is_read_and_is_run_again(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"writing\n"
    time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert os.listdir(tmp_path)
    with pytest.raises(DataError, match="There must be at least one TFRecord file"):
        tfrecord_dataset(tmp_path, global_batch_size=4)
    write_tfrecords({"x": np.arange(5)}, tmp_path, verbose=0)
    assert values(tmp_path) == [*range(5)]
    assert len(os.listdir(tmp_path)) == 5


def test_shards_of_a_writer_that_was_stopped_between_them_are_refused(tmp_path):
    write_tfrecords({"x": np.arange(5)}, tmp_path, verbose=0)
    index = tmp_path / "data.index.json"
    index.write_text(index.read_text().replace('"complete": true', '"complete": false'))
    with pytest.raises(DataError, match="All shards of a data set must be written before it is read"):
        tfrecord_dataset(tmp_path, global_batch_size=4)
    write_tfrecords({"x": np.arange(6)}, tmp_path, verbose=0)
    assert values(tmp_path) == [*range(6)]


def test_pictures_are_written_from_files_too(tmp_path):
    schema = {"image": Feature("uint8", (4, 5, 1), "png")}
    picture = tf.io.encode_png(images(1)[0][..., None]).numpy()
    write_tfrecords([{"image": picture}], tmp_path, schema=schema, verbose=0)
    (batch,) = tfrecord_dataset(tmp_path, global_batch_size=1)
    np.testing.assert_array_equal(batch["image"][0, ..., 0], images(1)[0])
