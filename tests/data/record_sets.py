"""Records written without the code under test, and damage done to them."""

import pathlib

import numpy as np
import tensorflow as tf

from mirrored_keras.data import Feature

ROWS = 40
SCHEMA = {"image": Feature("uint8", (4, 5)), "label": Feature("int64")}


def images(rows=ROWS):
    return np.random.default_rng(1).integers(0, 256, (rows, 4, 5), np.uint8)


def example(**values):
    """Returns a record: bytes as bytes lists, whole numbers as int64 lists, others as float lists."""
    feature = {}
    for name, value in values.items():
        value = value if isinstance(value, list) else [value]
        if isinstance(value[0], bytes):
            feature[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
        elif isinstance(value[0], int):
            feature[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=value))
        else:
            feature[name] = tf.train.Feature(float_list=tf.train.FloatList(value=value))
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def write_file(path, records, compression=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return path


def write_plain(folder, *, files=2, rows=ROWS, compression=""):
    """Writes files without an index; file f has the rows f, f + files, ..."""
    pixels = images(rows)
    for file in range(files):
        records = [example(image=pixels[row].tobytes(), label=row) for row in range(file, rows, files)]
        write_file(pathlib.Path(folder) / f"part-{file}.tfrecord", records, compression)
    return sorted(map(str, pathlib.Path(folder).glob("*.tfrecord")))


def flip(path, position):
    """Changes one bit."""
    data = bytearray(pathlib.Path(path).read_bytes())
    data[position] ^= 1
    pathlib.Path(path).write_bytes(data)


def cut(path, size):
    """Cuts off what follows the first bytes."""
    pathlib.Path(path).write_bytes(pathlib.Path(path).read_bytes()[:size])


def labels(dataset):
    """Returns the labels of a dataset of dictionaries, batch by batch."""
    return [batch["label"].numpy().tolist() for batch in dataset]


def flat(batches):
    return [label for batch in batches for label in batch]
