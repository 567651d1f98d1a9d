"""Time of reading TFRecords, against the usual form and against reading alone, in the same run.

    python tests/benchmarks/tfrecords.py [--rows 60000] [--large-rows 48] [--rounds 5]

The usual form is that of an article that many copy:
`TFRecordDataset(files).map(parse).shuffle(4096).batch(256, drop_remainder=True)`. Two data sets: small records (28 x 28
uint8), and large ones (512 x 512 x 7 int32, 7.3 MB) of which three bands are cut out and scaled to 0 ... 1 by picture.
Prints the median of alternating rounds and ratios of medians: above 1 is faster than the usual form.
"""

import argparse
import pathlib
import statistics
import tempfile
import time

import numpy as np
import tensorflow as tf

from mirrored_keras.data import tfrecord_dataset, write_tfrecords

SMALL, LARGE = (28, 28), (512, 512, 7)
BANDS = 3


def features_of(record):
    return tf.io.parse_single_example(
        record, {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    )


def parse_small(record):
    features = features_of(record)
    return tf.reshape(tf.io.decode_raw(features["image"], tf.uint8), SMALL), features["label"]


def parse_large(record):
    features = features_of(record)
    return scaled(tf.reshape(tf.io.decode_raw(features["image"], tf.int32), LARGE)), features["label"]


def scaled(image):
    image = tf.cast(image[..., :BANDS], tf.float32)
    low, high = tf.reduce_min(image), tf.reduce_max(image)
    return (image - low) / (high - low)


def scaled_row(row):
    return {**row, "image": scaled(row["image"])}


def seconds(dataset):
    start = time.perf_counter()
    for _ in dataset:
        pass
    return time.perf_counter() - start


def compare(title, datasets, rounds):
    times = {name: [] for name in datasets}
    for _ in range(rounds):
        for name, dataset in datasets.items():
            times[name].append(seconds(dataset))
    medians = {name: statistics.median(values) for name, values in times.items()}
    usual, reading = medians["usual form"], medians["reading alone"]
    print(f"\n{title}")
    for name, median in medians.items():
        spread = f"{min(times[name]):.3f} ... {max(times[name]):.3f}"
        ratios = f"{usual / median:5.2f} x   of reading alone {reading / median:4.2f}"
        print(f"  {name:24s} {median:7.3f} s ({spread})  {ratios}")


def small(folder, rows, rounds):
    images = np.random.default_rng(0).integers(0, 256, (rows, *SMALL), np.uint8)
    write_tfrecords({"image": images, "label": np.arange(rows) % 10}, folder, shards=4, verbose=0)
    files = sorted(map(str, folder.glob("*.tfrecord")))
    options = {"global_batch_size": 256, "inputs": "image", "targets": "label"}
    datasets = {
        "usual form": tf.data.TFRecordDataset(files).map(parse_small).shuffle(4096).batch(256, drop_remainder=True),
        "ours, all rows shuffled": tfrecord_dataset(folder, shuffle=True, **options),
        "ours, 4096 shuffled": tfrecord_dataset(folder, shuffle=4096, **options),
        "ours, in order": tfrecord_dataset(folder, **options),
        "reading alone": tf.data.TFRecordDataset(files).batch(256),
    }
    compare(f"{rows} records of 28 x 28 uint8", datasets, rounds)


def large(folder, rows, rounds):
    generator = np.random.default_rng(0)
    data = ({"image": generator.integers(0, 10000, LARGE, np.int32), "label": row} for row in range(rows))
    write_tfrecords(data, folder, shards=4, verbose=0)
    files = sorted(map(str, folder.glob("*.tfrecord")))
    usual = tf.data.TFRecordDataset(files).map(parse_large).shuffle(16).batch(8, drop_remainder=True)
    options = {"global_batch_size": 8, "inputs": "image", "targets": "label", "map_rows": scaled_row}
    datasets = {
        "usual form": usual,
        "ours, all rows shuffled": tfrecord_dataset(folder, shuffle=True, **options),
        "ours, 16 shuffled": tfrecord_dataset(folder, shuffle=16, **options),
        "ours, in order": tfrecord_dataset(folder, **options),
        "reading alone": tf.data.TFRecordDataset(files),
    }
    compare(f"{rows} records of 512 x 512 x 7 int32", datasets, rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=60000)
    parser.add_argument("--large-rows", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        small(pathlib.Path(folder) / "small", options.rows, options.rounds)
        large(pathlib.Path(folder) / "large", options.large_rows, options.rounds)


if __name__ == "__main__":
    main()
