"""Every form in which Keras takes data: three replicas train as one, with a short last batch."""

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf

from mirrored_keras import DistributedModel
from model.regression import BATCH, RANDOM, ROWS, X, Y, assert_trains_as_one, dataset, perceptron

pytestmark = pytest.mark.filterwarnings(
    "ignore:`shuffle=True` was passed",
    "ignore:Your input ran out of data",
    "ignore:Converting sparse IndexedSlices",
)

WORDS = np.array(["a", "b", "c", "d"])[RANDOM.integers(0, 4, ROWS)]
LENGTHS = RANDOM.integers(0, 5, ROWS)
RAGGED = tf.RaggedTensor.from_row_lengths(RANDOM.normal(size=LENGTHS.sum()).astype("float32"), LENGTHS)
SPARSE = np.where(RANDOM.random((ROWS, 6)) < 0.7, 0, RANDOM.normal(size=(ROWS, 6))).astype("float32")


def compiled(model, **options):
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"], **options)
    return model


def of_words():
    inputs = keras.Input((), dtype="string")
    ids = keras.layers.StringLookup(vocabulary=list("abcd"))(inputs)
    return compiled(DistributedModel(inputs, keras.layers.Dense(1)(keras.layers.Embedding(5, 3)(ids))))


def of_sparse_rows():
    inputs = keras.Input((6,), sparse=True)
    return compiled(DistributedModel(inputs, keras.layers.Dense(1)(inputs)))


class OfRaggedRows(DistributedModel):
    """The sum of a row's values, which may be none, and its square."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        total = tf.reduce_sum(inputs, axis=1)
        return self.dense(tf.stack([total, total**2], axis=1))


class OfNestedParts(DistributedModel):
    """Takes a dict of tuples."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        (first,), (second, third) = inputs["pair"], inputs["rest"]
        return self.dense(keras.ops.concatenate([first, second * third], axis=-1))


def of_named_parts():
    parts = {"first": keras.Input((2,), name="first"), "second": keras.Input((3,), name="second")}
    joined = keras.layers.Concatenate()([parts["second"], parts["first"]])
    return compiled(DistributedModel(parts, keras.layers.Dense(1)(joined)))


def nested():
    return {"pair": (X[:, :1],), "rest": (X[:, 1:3], X[:, 3:])}


def from_tensors(*parts):
    return tf.data.Dataset.from_tensor_slices(parts).batch(BATCH)


class Batches(keras.utils.PyDataset):
    """Uneven batches, made by two worker threads."""

    def __init__(self):
        super().__init__(workers=2)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return X[rows], Y[rows]


def fit(*args, **options):
    return lambda model: model.fit(*args, shuffle=False, verbose=0, epochs=2, **options).history


@pytest.mark.parametrize(
    ("make", "run"),
    [
        pytest.param(of_words, fit(from_tensors(WORDS, Y)), id="strings"),
        pytest.param(of_named_parts, fit({"first": X[:, :2], "second": X[:, 2:]}, Y, batch_size=BATCH), id="dict"),
        pytest.param(lambda: compiled(OfNestedParts()), fit(from_tensors(nested(), Y)), id="nested"),
        pytest.param(lambda: compiled(OfRaggedRows()), fit(from_tensors(RAGGED, Y)), id="ragged"),
        pytest.param(of_sparse_rows, fit(from_tensors(tf.sparse.from_dense(SPARSE), Y)), id="sparse"),
        pytest.param(lambda: perceptron(DistributedModel), fit(Batches()), id="PyDataset with workers"),
        pytest.param(
            lambda: perceptron(DistributedModel), fit(dataset().repeat(), steps_per_epoch=4), id="infinite dataset"
        ),
        pytest.param(
            lambda: perceptron(DistributedModel), fit(X, Y, batch_size=5, validation_split=0.3), id="validation split"
        ),
        pytest.param(
            lambda: perceptron(DistributedModel),
            fit(dataset(), validation_data=(X[:4], Y[:4]), validation_batch_size=3),
            id="odd validation batches",
        ),
        pytest.param(
            lambda: perceptron(DistributedModel, weighted_metrics=["mae"]),
            fit(X, Y, sample_weight=RANDOM.random((ROWS, 1)), batch_size=BATCH),
            id="weights in a column",
        ),
        pytest.param(
            lambda: perceptron(DistributedModel),
            fit(X.astype("float64"), Y.astype("int64"), batch_size=BATCH),
            id="ints",
        ),
    ],
)
def test_form(make, run):
    assert_trains_as_one(make, run=run)


def test_pandas():
    features, targets = pandas.DataFrame(X), pandas.Series(Y[:, 0])
    assert_trains_as_one(lambda: perceptron(DistributedModel), run=fit(features, targets, batch_size=BATCH))


def test_distributed_datasets_from_function():
    def run(model):
        def shards(context):
            assert context.num_input_pipelines == 1
            per_replica = -(-BATCH // context.num_replicas_in_sync)
            return tf.data.Dataset.from_tensor_slices((X, Y)).batch(per_replica, drop_remainder=True)

        strategy = model.distribute_strategy
        if strategy.num_replicas_in_sync == 1:
            data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(9, drop_remainder=True)
        else:
            data = strategy.distribute_datasets_from_function(shards)
        return model.fit(data, steps_per_epoch=2, verbose=0).history

    assert_trains_as_one(lambda: perceptron(DistributedModel), run=run)
