"""Writes the digits that ship with the package. Run once; the tests check that the result is still the same.

    python tests/data/write_digits.py mirrored_keras/data/digits

The held-out rows follow from the source alone, not from a random generator whose stream may change between versions:
every fifth picture of each digit, counted from the first.
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import sklearn.datasets
import tensorflow as tf

TRAIN_SHARDS = 4
TEST_SHARDS = 1
HELD_OUT_EVERY = 5


def held_out_rows(labels: np.ndarray) -> np.ndarray:
    """Marks every fifth row of each label as held out.

    Args:
        labels: Labels of shape `(rows,)`.

    Returns:
        Booleans of shape `(rows,)`.
    """
    held_out = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        held_out[np.flatnonzero(labels == label)[::HELD_OUT_EVERY]] = True
    return held_out


def example(image: np.ndarray, label: int, source_row: int) -> bytes:
    """Serializes one picture.

    Args:
        image: Pixels of shape `(8, 8)`, whole numbers from 0 to 16.
        label: The digit.
        source_row: Row of the picture in the source.

    Returns:
        A serialized `tf.train.Example`.
    """
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.astype(np.uint8).tobytes()])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        "source_row": tf.train.Feature(int64_list=tf.train.Int64List(value=[source_row])),
    }
    # Deterministic: the order of a map's entries is otherwise free, and two runs would give different bytes.
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)


def write(directory: pathlib.Path) -> None:
    """Writes all shards of both splits into a directory.

    Args:
        directory: Where the files go; made if it does not exist.
    """
    directory.mkdir(parents=True, exist_ok=True)
    source = sklearn.datasets.load_digits()
    held_out = held_out_rows(source.target)
    splits = {"train": (np.flatnonzero(~held_out), TRAIN_SHARDS), "test": (np.flatnonzero(held_out), TEST_SHARDS)}
    for split, (rows, shards) in splits.items():
        for shard, shard_rows in enumerate(np.array_split(rows, shards)):
            path = directory / f"{split}-{shard:05d}-of-{shards:05d}.tfrecord"
            with tf.io.TFRecordWriter(str(path)) as writer:
                for row in shard_rows:
                    writer.write(example(source.images[row], int(source.target[row]), int(row)))


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]))
