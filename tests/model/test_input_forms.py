"""Every form in which Keras takes data: three replicas train as one, with a short last batch."""

import keras
import numpy as np
import pandas
import pytest
import scipy.sparse
import tensorflow as tf

from mirrored_keras import DistributedModel
from model.regression import BATCH, RANDOM, ROWS, X, Y, assert_trains_as_one, dataset, made_under, perceptron

pytestmark = pytest.mark.filterwarnings(
    "ignore:`shuffle=True` was passed",
    "ignore:Your input ran out of data",
    "ignore:Converting sparse IndexedSlices",
)

WORDS = np.array(["a", "b", "c", "d"])[RANDOM.integers(0, 4, ROWS)]
LENGTHS = RANDOM.integers(0, 5, ROWS)
RAGGED = tf.RaggedTensor.from_row_lengths(RANDOM.normal(size=LENGTHS.sum()).astype("float32"), LENGTHS)
RAGGED_VECTORS = tf.RaggedTensor.from_row_lengths(RANDOM.normal(size=(LENGTHS.sum(), 2)).astype("float32"), LENGTHS)
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


class OfCompositesAlone(DistributedModel):
    """Takes ragged or sparse tensors, and no dense ones."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        if isinstance(inputs, tf.RaggedTensor):
            return self.dense(inputs.to_tensor(shape=[None, 5]))
        return self.dense(tf.ensure_shape(tf.sparse.to_dense(inputs), [None, 6]))


class OfPaddedRows(DistributedModel):
    """A convolution over a row's padded values, which no kernel does for an empty batch."""

    def __init__(self, channels):
        super().__init__()
        self.conv, self.dense = keras.layers.Conv1D(3, 3, padding="same"), keras.layers.Dense(1)
        self.conv.build((None, 5, channels))
        self.dense.build((None, 3))
        self.channels = channels

    def call(self, inputs):
        if isinstance(inputs, tf.RaggedTensor):
            inputs = inputs.to_tensor(shape=[None, 5, *inputs.shape[2:]])
        elif isinstance(inputs, tf.SparseTensor):
            inputs = tf.sparse.to_dense(inputs)
        rows = tf.reshape(inputs, [-1, 5, self.channels])
        return self.dense(tf.reduce_mean(self.conv(rows), axis=1))


class OutOfComposites(keras.Model):
    """Predicts ragged and sparse rows."""

    def call(self, inputs):
        return {"ragged": inputs * 2.0, "sparse": tf.sparse.from_dense(inputs.to_tensor(shape=[None, 5]))}


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
        pytest.param(lambda: compiled(OfCompositesAlone()), fit(from_tensors(RAGGED, Y)), id="nothing but ragged"),
        pytest.param(
            lambda: compiled(OfCompositesAlone()),
            fit(from_tensors(tf.sparse.from_dense(SPARSE), Y)),
            id="nothing but sparse",
        ),
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


@pytest.mark.parametrize(
    ("rows", "channels"),
    [
        pytest.param(RAGGED, 1, id="ragged"),
        pytest.param(RAGGED_VECTORS, 2, id="ragged vectors"),
        pytest.param(tf.sparse.from_dense(SPARSE[:, :5]), 1, id="sparse"),
    ],
)
def test_composite_rows_that_leave_replicas_empty(rows, channels):
    batches = tf.data.Dataset.from_tensor_slices((rows, Y)).batch(6)  # the last batch has one row

    def run(model):
        logs = fit(batches, validation_data=batches)(model)
        predictions[model.distribute_strategy.num_replicas_in_sync] = model.predict(batches, verbose=0)
        return logs

    predictions = {}
    assert_trains_as_one(lambda: compiled(OfPaddedRows(channels), micro_batches=2), run=run)
    assert predictions[1].shape == (ROWS, 1)
    np.testing.assert_allclose(predictions[3], predictions[1], rtol=0, atol=2e-6)


def test_scipy_matrix():
    """The last batch has one row; an array keeps its number of batches, unlike a dataset that is shared out here."""
    matrix = scipy.sparse.csr_matrix(SPARSE)
    one, many = assert_trains_as_one(of_sparse_rows, run=fit(matrix, Y, batch_size=6))
    np.testing.assert_allclose(
        many.predict(matrix, batch_size=6, verbose=0), one.predict(matrix, batch_size=6, verbose=0), rtol=0, atol=2e-6
    )


def test_targets_that_are_none():
    def make():
        inputs = keras.Input((5,))
        model = DistributedModel(inputs, [keras.layers.Dense(1)(inputs), keras.layers.Dense(1)(inputs)])
        model.compile(keras.optimizers.SGD(0.05), ["mse", None])
        return model

    with pytest.warns(UserWarning, match="Gradients do not exist"):
        assert_trains_as_one(make, run=fit(X, [Y, None], batch_size=BATCH))


def test_composite_predictions_of_replicas_without_rows():
    batches = tf.data.Dataset.from_tensor_slices(RAGGED).batch(6)

    def make():
        model = DistributedModel.from_model(OutOfComposites())
        model.compile()
        return model

    predictions = made_under(3, make).predict(batches, verbose=0)
    assert predictions["ragged"].to_list() == (RAGGED * 2.0).to_list()
    np.testing.assert_array_equal(tf.sparse.to_dense(predictions["sparse"]), RAGGED.to_tensor(shape=[None, 5]))


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
