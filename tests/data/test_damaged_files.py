"""Damage and foreign files: errors with file, record and feature; `errors="skip"` reads exactly the rest."""

import logging
import os

import numpy as np
import pytest
import tensorflow as tf

from data.record_sets import ROWS, SCHEMA, cut, example, flat, flip, images, labels, write_file, write_plain
from mirrored_keras import DataError
from mirrored_keras.data import BadRecord, Feature, check_tfrecords, tfrecord_dataset, write_tfrecords

ALL = set(range(ROWS))
RECORD = len(example(image=images()[0].tobytes(), label=1)) + 16
FIRST = [*range(0, ROWS, 2)]  # the rows of the first file


def read(files, schema=SCHEMA, **options):
    return labels(tfrecord_dataset(files, schema, global_batch_size=8, **options))


def refused(files, schema=SCHEMA, **options):
    with pytest.raises(DataError) as caught:
        read(files, schema, **options)
    return str(caught.value)


def failed(files, schema=SCHEMA, **options):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        read(files, schema, **options)
    return str(caught.value)


def test_an_empty_folder(tmp_path):
    assert refused(tmp_path) == (
        "There must be at least one TFRecord file.\n"
        f"Received: files={tmp_path!r}, where there is none\n"
        'What to do: a folder with *.tfrecord files, a pattern such as "data/train-*.tfrecord", or a list of files'
    )


def test_files_without_records(tmp_path):
    write_file(tmp_path / "a.tfrecord", [])
    assert "There must be at least one record." in refused(tmp_path)
    assert "Without records, nobody can tell what they hold." in refused(tmp_path, None)


@pytest.mark.parametrize("text", ["a page of text that is no record", "x"])
def test_a_foreign_file(tmp_path, text):
    write_plain(tmp_path)
    (tmp_path / "z.tfrecord").write_text(text)
    assert refused(tmp_path) == (
        "A file of records must begin with the length of a record and its checksum.\n"
        f"Received: path='{tmp_path}/z.tfrecord', which begins with {text[:12].encode()} at record 0\n"
        "What to do: remove the file from the folder, or name the record files by a pattern"
    )


@pytest.mark.parametrize(
    ("size", "problem"),
    [
        (RECORD * 5 + 3, "the file is cut: it ends 3 bytes into the record"),
        (RECORD * 6 - 1, f"the file is cut: 1 bytes of the record's {RECORD - 16} and its checksum are missing"),
    ],
)
def test_a_cut_file(tmp_path, size, problem):
    first, _ = write_plain(tmp_path)
    cut(first, size)
    assert f"Received: path={first!r}, record 5: {problem}\n" in refused(tmp_path)
    assert flat(read(tmp_path, errors="skip")) == FIRST[:5] + [row + 1 for row in FIRST]
    assert check_tfrecords(tmp_path, SCHEMA) == [BadRecord(first, 5, problem)]


def test_a_cut_compressed_file(tmp_path):
    first, _ = write_plain(tmp_path, compression="GZIP")
    cut(first, os.path.getsize(first) - 40)
    assert "the file is cut or damaged" in refused(tmp_path)
    rows = flat(read(tmp_path, errors="skip"))
    assert rows[-20:] == [row + 1 for row in FIRST]
    assert rows[:-20] == FIRST[: len(rows) - 20]


def test_a_damaged_length(tmp_path):
    first, _ = write_plain(tmp_path)
    flip(first, RECORD * 7 + 1)
    assert "record 7: the length of the record does not have its checksum (CRC)" in refused(tmp_path)
    assert flat(read(tmp_path, errors="skip")) == FIRST[:7] + [row + 1 for row in FIRST]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("indexed", [False, True])
def test_a_damaged_record_is_named(tmp_path, shuffle, indexed):
    if indexed:
        write_tfrecords({"image": images(), "label": np.arange(ROWS)}, tmp_path, shards=2, verbose=0)
    else:
        write_plain(tmp_path)
    first = sorted(map(str, tmp_path.glob("*.tfrecord")))[0]
    flip(first, os.path.getsize(first) // 20 * 7 + 30)
    text = failed(tmp_path, shuffle=shuffle)
    assert "A record must be as it was written: this one does not have its checksum (CRC)" in text
    assert f"Received: {first} record 7 What to do: " in text
    assert set(flat(read(tmp_path, shuffle=shuffle, errors="skip"))) == ALL - {14}


def test_skipped_records_are_counted_and_reported(tmp_path, caplog):
    first, second = write_plain(tmp_path)
    flip(first, RECORD * 3 + 30)
    flip(first, RECORD * 4 + 30)
    flip(second, RECORD * 19 + 30)
    with caplog.at_level(logging.WARNING, "mirrored_keras"):
        dataset = tfrecord_dataset(tmp_path, SCHEMA, global_batch_size=8, errors="skip")
    assert caplog.messages == [
        'errors="skip": 3 of 40 records are left out:\n'
        f"{first} record 3: the record does not have its checksum (CRC)\n"
        f"{first} record 4: the record does not have its checksum (CRC)\n"
        f"{second} record 19: the record does not have its checksum (CRC)"
    ]
    assert int(dataset.cardinality()) == 5
    assert set(flat(labels(dataset))) == ALL - {6, 8, 39}


def bad_records(folder):
    """Writes three good rows, and between them four that each lack or break something."""
    pixels = images(1)[0].tobytes()
    records = [
        example(image=pixels, label=0),
        example(image=pixels),
        example(image=pixels, label=1),
        example(image=pixels[:-1], label=2),
        example(image=pixels, label=0.5),
        b"\x0a\xff no message",
        example(image=pixels, label=3),
    ]
    return str(write_file(folder / "a.tfrecord", records))


def test_bad_records_are_named_and_skipped(tmp_path):
    file = bad_records(tmp_path)
    bad = check_tfrecords(file, SCHEMA)
    assert [record.record for record in bad] == [1, 3, 4, 5]
    assert "record 1, Feature: label (data type: int64) is required but could not be found." in bad[0].reason
    assert "record 3, feature=image, length=19, where 20 bytes are expected for uint8 (4, 5)" in bad[1].reason
    assert "record 4, Key: label" in bad[2].reason
    assert "Data types don't match" in bad[2].reason
    assert flat(read(file, errors="skip")) == [0, 1, 3]
    assert sorted(flat(read(file, errors="skip", shuffle=True))) == [0, 1, 3]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"more": Feature("float32")}, "record 0, Feature: more (data type: float) is required but could not be found"),
        ({"label": Feature("float32")}, "record 0, Key: label, Index: 0.  Data types don't match."),
        ({"label": Feature("int64", (2,), "list")}, "record 0, Key: label, Index: 0.  Number of int64 values"),
        (
            {"image": Feature("float32", (4, 5))},
            "record 0, feature=image, length=20, where 80 bytes are expected for float32 (4, 5) What to do: ",
        ),
        (
            {"image": Feature("float64", (None, 4))},
            "record 0, feature=image, length=20, where a multiple of 32 bytes is expected for float64 (None, 4)",
        ),
        (
            {"label": Feature("int64", (None, 2), "list")},
            "record 0, feature=label, length=1, where a multiple of 2 numbers is expected for int64 (None, 2)",
        ),
        ({"label": Feature("bool")}, "record 1, feature=label, where bool is expected"),
        ({"label": Feature("bool", (None,), "list")}, "record 1, feature=label, where bool is expected"),
        ({"label": Feature("bool", (1,), "list")}, "record 1, feature=label, where bool is expected"),
        ({"image": Feature("uint8", (4, 5, 1), "png")}, "record 0, feature=image, which does not begin like png"),
    ],
)
def test_a_schema_that_does_not_fit_names_file_record_and_feature(tmp_path, change, expected):
    first, _ = write_plain(tmp_path)
    text = failed(tmp_path, {**SCHEMA, **change})
    assert f"{first} {expected}" in text


def test_a_picture_of_another_shape(tmp_path):
    schema = {"image": Feature("uint8", (None, None, 1), "png")}
    write_tfrecords([{"image": images(1)[0][..., None]}], tmp_path, schema=schema, shards=1, verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"record 0, feature=image, shape=\[4 5 1\], where \(5, 5"):
        list(tfrecord_dataset(tmp_path, {"image": Feature("uint8", (5, 5, 1), "png")}, global_batch_size=1))
    with pytest.raises(DataError, match="Rows must have one shape before they become a batch"):
        tfrecord_dataset(tmp_path, global_batch_size=1)


def test_raw_bytes_must_be_declared(tmp_path):
    first, _ = write_plain(tmp_path)
    assert refused(tmp_path, None) == (
        "The type and shape of raw bytes are not in the records: they must be declared.\n"
        f"Received: path={first!r}, feature='image', 20 bytes: Feature('uint8', (20,), 'raw') or others\n"
        f"What to do: schema=, as `mirrored-keras inspect {first}` prints it"
    )


def test_the_rest_of_a_schema_is_inferred(tmp_path):
    png = tf.io.encode_png(images(1)[0][..., None]).numpy()
    tensor = tf.io.serialize_tensor(np.ones((2, 3), np.float32)).numpy()
    records = [
        example(one=1, two=[1.5, 2.5], many=[1] * (n + 1), name=f"row {n}".encode(), png=png, tensor=tensor)
        for n in range(3)
    ]
    write_file(tmp_path / "a.tfrecord", records)
    (batch,) = tfrecord_dataset(tmp_path, global_batch_size=3)
    assert {name: (value.dtype.name, value.shape.as_list()) for name, value in batch.items()} == {
        "one": ("int64", [3]),
        "two": ("float32", [3, 2]),
        "many": ("int64", [3, None]),
        "name": ("string", [3]),
        "png": ("uint8", [3, 4, 5, 1]),
        "tensor": ("float32", [3, 2, 3]),
    }


def test_files_must_be_those_of_the_index(tmp_path):
    write_tfrecords({"label": np.arange(9)}, tmp_path, shards=2, verbose=0)
    first = str(tmp_path / "data-00000-of-00002.tfrecord")
    size = os.path.getsize(first)
    cut(first, size - 1)
    assert refused(tmp_path, None) == (
        "Files must be those that their index lists, in the size that it states.\n"
        f"Received: path={first!r} of {size - 1} bytes, where '{tmp_path}/data.index.json' lists {size} bytes\n"
        "What to do: a copy of the file, or write the records again; without the index file the records are counted"
    )
    assert "missing=['image']" in refused(tmp_path)
    (tmp_path / "data.index.json").write_text("{}")
    assert "The index beside the shards must be one that `write_tfrecords` wrote." in refused(tmp_path)


def test_data_sets_of_a_folder_are_not_mixed(tmp_path):
    for prefix in ("train", "test"):
        write_tfrecords({"label": np.arange(4)}, tmp_path, prefix=prefix, verbose=0)
    assert refused(tmp_path, None) == (
        "Of a folder with several data sets, one is read at a time.\n"
        f"Received: files='{tmp_path}', data sets=['test', 'train']\n"
        f'What to do: "{tmp_path}/test-*", or a list of files to read them together'
    )
    assert read(f"{tmp_path}/train-*", None) == [[0, 1, 2, 3]]
    assert len(flat(read([f"{tmp_path}/train-*", f"{tmp_path}/test-*"], None))) == 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"global_batch_size": 0}, "A number of rows is a positive integer.\nReceived: global_batch_size=0\n"),
        ({"tail": "cut"}, "Received: tail='cut'\n"),
        ({"repeat": 0, "seed": None}, "Received: repeat=0, seed=None\n"),
        ({"shard": (2, 2)}, "`shard` is `(i, n)`: worker i of n, from 0 on.\nReceived: shard=(2, 2)\n"),
        ({"shard": (0, 3)}, "need equal parts of the global batch.\nReceived: global_batch_size=8, parts=3\n"),
        ({"shard": (0, 2), "input_context": tf.distribute.InputContext()}, "A share is named once."),
        ({"targets": "label"}, "Targets and weights go with inputs."),
        ({"inputs": "picture"}, "unknown=['picture'], where there are ['image', 'label']"),
        ({"tail": "drop", "global_batch_size": 100}, "There must be rows for one batch where the rest is dropped."),
        ({"schema": {"label": "int64"}}, "`schema` is a dictionary from the names of the features to `Feature`."),
    ],
)
def test_options_that_cannot_be(tmp_path, options, words):
    write_plain(tmp_path)
    with pytest.raises(ValueError) as caught:
        tfrecord_dataset(tmp_path, **{"schema": SCHEMA, "global_batch_size": 8, **options})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("int65",), "The type of a feature is the name of a type of numbers"),
        (("int8", (2, None)), "only the first may be `None`"),
        (("int8", (0,)), "Sizes of a row are positive"),
        (("float64", (), "list"), "must hold its type and shape without loss"),
        (("uint8", (4, 4), "png"), "must hold its type and shape without loss"),
        (("string", (), "raw"), "must hold its type and shape without loss"),
    ],
)
def test_features_that_cannot_be(arguments, words):
    with pytest.raises(DataError) as caught:
        Feature(*arguments)
    assert words in str(caught.value)
