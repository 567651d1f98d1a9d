"""The same rows as every kind of data that `fit` takes, with batches that do not divide evenly."""

import keras
import numpy as np
import tensorflow as tf

from checkpoint.training import ROWS, arrays, dataset


def fit_arrays(**options):
    def fit(model, callbacks):
        x, y, weight = arrays()
        options_here = {"epochs": 3, "batch_size": 4, "sample_weight": weight, "verbose": 0, **options}
        return model.fit(x, y, callbacks=callbacks, **options_here)

    return fit


def fit_data(make, **options):
    def fit(model, callbacks):
        return model.fit(make(), callbacks=callbacks, **{"epochs": 3, "shuffle": False, "verbose": 0, **options})

    return fit


def of_unknown_length():
    return dataset().filter(lambda x, y, weight: True)


def records(folder):
    """A pipeline as for images: shards in shuffled order, read two at a time, parsed in parallel, shuffled again."""
    paths = [str(folder / f"{shard}.tfrecord") for shard in range(3)]
    rows = np.concatenate([arrays()[0], arrays()[1], arrays()[2][:, None]], axis=1)
    for shard, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as file:
            for row in rows[shard::3]:
                file.write(tf.io.serialize_tensor(row).numpy())

    def parsed(text):
        return tf.ensure_shape(tf.io.parse_tensor(text, tf.float32), [7])

    def make():
        files = tf.data.Dataset.from_tensor_slices(paths).shuffle(3, seed=1)
        rows = files.interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=2, deterministic=True)
        batches = rows.map(parsed, num_parallel_calls=2).shuffle(10, seed=2).batch(4)
        return batches.map(lambda rows: (rows[:, :5], rows[:, 5:6], rows[:, 6])).prefetch(2)

    return make


class Batches(keras.utils.PyDataset):
    def __init__(self, **options):
        super().__init__(**options)
        self.data = arrays()

    def __len__(self):
        return -(-ROWS // 4)

    def __getitem__(self, index):
        return tuple(part[4 * index : 4 * index + 4] for part in self.data)


class ReshuffledBatches(Batches):
    """Changes its own order at the end of every epoch, as many do."""

    def __init__(self, **options):
        super().__init__(**options)
        self.numbers = np.random.RandomState(5)

    def on_epoch_end(self):
        order = self.numbers.permutation(ROWS)
        self.data = tuple(part[order] for part in self.data)


class EndlessBatches(keras.utils.PyDataset):
    num_batches = None

    def __getitem__(self, index):
        return Batches()[index % 6]
