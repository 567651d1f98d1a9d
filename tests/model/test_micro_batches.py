"""Micro-batches: what they refuse, what they leave alone, and how their number is found."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from mirrored_keras import DistributedModel, GlobalBatch, GlobalBatchLoss, SetupError, find_micro_batches
from model.regression import assert_same_weights, made_under

pytestmark = pytest.mark.table(every=3)

RANDOM = np.random.default_rng(8)
X, Y = RANDOM.normal(size=(24, 4)).astype("float32"), RANDOM.normal(size=(24, 1)).astype("float32")


@keras.saving.register_keras_serializable("tests")
class Limited(keras.layers.Layer):
    """Runs out of memory, as an allocator does, for more than so many rows at once."""

    def __init__(self, limit, **kwargs):
        super().__init__(**kwargs)
        self.limit = limit

    def call(self, inputs):
        def allocate(values):
            if len(values) > self.limit:
                raise MemoryError("no memory left")
            return values

        values = tf.numpy_function(allocate, [inputs], inputs.dtype, stateful=False)
        return inputs + tf.stop_gradient(tf.ensure_shape(values, inputs.shape) - inputs)


def limited(limit, **options):
    inputs = keras.Input((4,))
    hidden = Limited(limit)(keras.layers.BatchNormalization()(inputs))
    model = DistributedModel(inputs, keras.layers.Dense(1)(keras.layers.Dropout(0.5)(hidden)))
    model.compile("adam", "mse", metrics=["mae"], **options)
    return model


@pytest.mark.parametrize(("replicas", "limit", "expected"), [(None, 24, 1), (2, 5, 4), (2, 1, 12)])
def test_finds_the_smallest_number_that_fits(replicas, limit, expected):
    model = made_under(replicas, lambda: limited(limit))
    before = [variable.numpy().copy() for variable in model.variables]
    assert find_micro_batches(model, X, Y) == model.micro_batches == expected
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)
    assert int(model.optimizer.iterations.numpy()) == 0
    assert all(float(np.sum(variable.numpy())) == 0 for metric in model.metrics for variable in metric.variables)
    model.fit(X, Y, batch_size=24, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 1


def test_not_even_one_row_fits():
    model = made_under(2, lambda: limited(0))
    with pytest.raises(
        SetupError, match=r"Not even one row per replica fits into memory\.\nReceived: micro_batches=12"
    ):
        find_micro_batches(model, X, Y)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "2"])
def test_number(value):
    with pytest.raises(SetupError, match="a positive integer"):
        made_under(None, lambda: limited(24, micro_batches=value))


def test_own_train_step():
    class Own(DistributedModel):
        def train_step(self, data):
            return {}

    inputs = keras.Input((4,))
    model = Own(inputs, keras.layers.Dense(1)(inputs))
    with pytest.raises(SetupError, match="override compute_loss instead of train_step"):
        model.compile("sgd", "mse", micro_batches=2)


def test_set_between_two_fits():
    def make():
        inputs = keras.Input((4,))
        model = DistributedModel(inputs, keras.layers.Dense(1)(inputs))
        model.compile(keras.optimizers.Adam(0.1), "mse")
        return model

    one, pieces = made_under(None, make), made_under(3, make)
    for count in (1, 5, 2):
        pieces.micro_batches = count
        one.fit(X, Y, batch_size=10, shuffle=False, verbose=0)
        pieces.fit(X, Y, batch_size=10, shuffle=False, verbose=0)
        one.train_on_batch(X[:7], Y[:7])
        pieces.train_on_batch(X[:7], Y[:7])
    assert_same_weights(one, pieces)


class OwnLoss(DistributedModel):
    """A compiled loss, an own one from a loss object, and a penalty that is a mean over rows."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        batch = GlobalBatch.current(x)
        own = batch.loss(keras.losses.Huber(), y, 2.0 * y_pred, sample_weight)
        penalty = keras.ops.mean(keras.ops.square(y_pred))
        return super().compute_loss(x, y, y_pred, sample_weight, training) + own + 0.1 * penalty


@pytest.mark.parametrize("replicas", [None, 2])
def test_own_compute_loss(replicas):
    def make():
        inputs = keras.Input((4,))
        model = OwnLoss(inputs, keras.layers.Dense(1)(inputs))
        model.compile(keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError("mean_with_sample_weight"))
        return model

    one, pieces = made_under(None, make), made_under(replicas, make)
    pieces.micro_batches = 3
    weights = RANDOM.random(24).astype("float32")
    for model in (one, pieces):
        model.fit(X, Y, sample_weight=weights, batch_size=10, shuffle=False, verbose=0)
    assert_same_weights(one, pieces)


def test_mean_is_refused_inside_a_piece():
    class UsesMean(DistributedModel):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return GlobalBatch.current(x).mean(keras.ops.mean(y_pred))

    def make():
        inputs = keras.Input((4,))
        model = UsesMean(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", micro_batches=2)
        return model

    with pytest.raises(SetupError, match="not known while a piece of it is trained"):
        made_under(2, make).fit(X, Y, verbose=0)


@pytest.mark.filterwarnings("ignore:.*one score for all rows")
@pytest.mark.parametrize("loss", [keras.losses.Dice, lambda: GlobalBatchLoss(keras.losses.Dice())])
@pytest.mark.parametrize("replicas", [None, 2])
def test_a_loss_over_all_rows_is_refused(replicas, loss):
    def make():
        inputs = keras.Input((4,))
        model = DistributedModel(inputs, keras.layers.Dense(1, activation="sigmoid")(inputs))
        model.compile("sgd", loss(), micro_batches=2)
        return model

    model = made_under(replicas, make)
    with pytest.raises(SetupError, match="not all there while a piece of it is trained"):
        model.fit(X, np.ones((24, 1)), verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 0


class SumsOnlyInTraining(DistributedModel):
    """Asks for a sum over the replicas that a pass without training does not ask for."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs, training=False):
        outputs = self.dense(inputs)
        if training:
            self.add_loss(GlobalBatch.current(inputs).loss(keras.losses.MeanSquaredError(), outputs, 0 * outputs))
        return outputs


@pytest.mark.parametrize("replicas", [None, 2])
def test_sums_that_the_first_pass_does_not_know(replicas):
    def make():
        model = SumsOnlyInTraining()
        model(X)
        model.compile("sgd", "mse", micro_batches=2)
        return model

    with pytest.raises(SetupError, match="the same sums whether it is training or not"):
        made_under(replicas, make).fit(X, Y, verbose=0)


def test_number_is_saved(tmp_path):
    model = made_under(None, lambda: limited(24, micro_batches=3))
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").micro_batches == 3
