"""Pictures and serialized tensors that are damaged inside, though their record is whole."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from data.record_sets import example, write_file
from mirrored_keras import DataError
from mirrored_keras.data import Feature, check_tfrecords, tfrecord_dataset, write_tfrecords

PNG = tf.io.encode_png(np.arange(20, dtype=np.uint8).reshape(4, 5, 1)).numpy()
JPEG = tf.io.encode_jpeg(np.zeros((16, 16, 3), np.uint8)).numpy()
TENSOR = tf.io.serialize_tensor(np.ones((2, 3), np.float32)).numpy()
SCHEMA = {
    "drawing": Feature("uint8", (4, 5, 1), "png"),
    "photo": Feature("uint8", (16, 16, 3), "jpeg"),
    "values": Feature("float32", (2, 3), "tensor"),
}
DAMAGE = {1: {"drawing": PNG[:40]}, 2: {"photo": JPEG[:100]}, 3: {"values": TENSOR[:-3]}, 5: {"values": b"junk"}}


@pytest.fixture
def file(tmp_path):
    whole = {"drawing": PNG, "photo": JPEG, "values": TENSOR}
    return str(write_file(tmp_path / "a.tfrecord", [example(**{**whole, **DAMAGE.get(row, {})}) for row in range(7)]))


def test_what_cannot_be_decoded_is_named_skipped_and_counted(file, caplog):
    bad = check_tfrecords(file, SCHEMA)
    features = [next(iter(DAMAGE[record])) for record in DAMAGE]
    assert [(one.file, one.record) for one in bad] == [(file, record) for record in DAMAGE]
    assert [one.reason for one in bad] == [f"feature={name}, which cannot be decoded" for name in features]
    with caplog.at_level(logging.WARNING, "mirrored_keras"):
        rest = tfrecord_dataset(file, SCHEMA, global_batch_size=2, errors="skip")
    assert caplog.messages[0].startswith('errors="skip": 4 of 7 records are left out:\n')
    assert [len(batch["photo"]) for batch in rest] == [2, 1]


def test_reading_names_the_feature_and_who_names_the_record(file):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(tfrecord_dataset(file, SCHEMA, global_batch_size=2))
    assert "feature_drawing.mirrored-keras_inspect_--check_names_the_record" in str(caught.value)


@pytest.mark.parametrize(
    ("feature", "value", "received"),
    [
        ("drawing", PNG[:40], "a picture (png) that cannot be decoded"),
        ("photo", JPEG[:100], "a picture (jpeg) that cannot be decoded"),
        ("drawing", JPEG, "bytes that do not begin like png"),
        ("photo", b"", "bytes that do not begin like jpeg"),
        ("drawing", tf.io.encode_png(np.zeros((5, 4, 1), np.uint8)).numpy(), "a picture of shape (5, 4, 1)"),
    ],
)
def test_files_of_pictures_are_refused_by_the_writer(tmp_path, feature, value, received):
    good = {"drawing": PNG, "photo": JPEG, "values": np.ones((2, 3), np.float32)}
    with pytest.raises(DataError) as caught:
        write_tfrecords([good, {**good, feature: value}], tmp_path, schema=SCHEMA, verbose=0)
    assert f"row=1, feature='{feature}': {received}, where uint8 of shape" in str(caught.value)
