"""Plain batch normalisation: statistics per replica, but one set of moving statistics, weighted by rows."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from devices import strategy_for
from layers.normalized import LAYERS, assert_one_set_of_states, copies, data, fitted, model_of
from mirrored_keras import DistributedModel

MOMENTUM = 0.6
PLAIN = model_of((3,), lambda: LAYERS.BatchNormalization(momentum=MOMENTUM))


def expected_statistics(x, replicas, batch):
    """The formula: each replica's own update, averaged with the weights B_r / G."""
    mean, variance = np.zeros(x.shape[1]), np.ones(x.shape[1])
    for start in range(0, len(x), batch):
        rows = x[start : start + batch].astype("float64")
        parts = [part for part in np.array_split(rows, replicas) if len(part)]
        shares = [len(part) / len(rows) for part in parts]
        mean = sum(s * (MOMENTUM * mean + (1 - MOMENTUM) * p.mean(axis=0)) for s, p in zip(shares, parts, strict=True))
        variance = sum(
            s * (MOMENTUM * variance + (1 - MOMENTUM) * p.var(axis=0)) for s, p in zip(shares, parts, strict=True)
        )
    return mean, variance


def assert_statistics(model, x, replicas, batch):
    layer = model.layers[1]
    received = layer.moving_mean.numpy(), layer.moving_variance.numpy()
    for one, other in zip(expected_statistics(x, replicas, batch), received, strict=True):
        np.testing.assert_allclose(other, one, rtol=2e-6)
    assert_one_set_of_states(model)


@pytest.mark.parametrize(("replicas", "batch"), [(2, 7), (4, 5), (3, 4)])
def test_weighted_by_rows(replicas, batch):
    """On three replicas 4 rows are 2, 1 and 1, and the last batch leaves two without rows."""
    x, y = data((3,))
    model, _, _ = fitted(PLAIN, replicas, x, y, batch=batch)
    assert_statistics(model, x, replicas, batch)


def test_eagerly():
    x, y = data((3,), rows=5)
    make = model_of((3,), lambda: LAYERS.BatchNormalization(momentum=MOMENTUM), run_eagerly=True)
    model, _, _ = fitted(make, 3, x, y)
    assert_statistics(model, x, 3, 4)


def test_live_model_evaluates_as_the_saved_one(tmp_path):
    x, y = data((3,))
    model, _, _ = fitted(PLAIN, 3, x, y)
    live = model.evaluate(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    reloaded = keras.models.load_model(tmp_path / "model.keras").evaluate(x, y, verbose=0)
    assert live == pytest.approx(reloaded, rel=1e-6)


class OwnStep(DistributedModel):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def test_own_train_step():
    x, y = data((3,))
    make = model_of((3,), lambda: LAYERS.BatchNormalization(momentum=MOMENTUM), base=OwnStep)
    model, _, _ = fitted(make, 3, x, y)
    assert_statistics(model, x, 3, 4)


def test_train_step_in_an_own_loop():
    x, y = data((3,))
    strategy = strategy_for(2)
    with strategy.scope():
        model = PLAIN()
    step = tf.function(lambda *batch: strategy.run(model.train_step, args=(batch,)))
    for batch in strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(7)):
        step(*batch)
    assert_statistics(model, x, 2, 7)


def test_what_is_not_trained_stays_to_the_bit():
    """Means of equal numbers would be rounded: 3/7 + 2/7 + 2/7 is not 1."""
    make = model_of(
        (3,),
        lambda: LAYERS.BatchNormalization(trainable=False, moving_mean_initializer="random_normal"),
        lambda: LAYERS.BatchNormalization(),
    )
    model, start, _ = fitted(make, 3, *data((3,)), batch=7)
    for before, after in zip(start[2:4], model.get_weights()[2:4], strict=True):
        np.testing.assert_array_equal(before, after)
    before = [v.numpy() for v in model.non_trainable_variables]
    model.evaluate(*data((3,)), batch_size=7, verbose=0)
    for old, variable in zip(before, model.non_trainable_variables, strict=True):
        for copy in copies(variable):
            np.testing.assert_array_equal(old, copy)
