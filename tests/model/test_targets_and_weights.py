"""Losses that are one number, targets whose rows would meet columns, and ragged data on replicas without rows."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tolerances
from devices import strategy_for
from mirrored_keras import BatchError, DistributedModel, GlobalBatch

pytestmark = pytest.mark.table(every=3)

RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(11, 4)).astype("float32"), RNG.normal(size=(11, 1)).astype("float32")
WEIGHTS = RNG.uniform(0, 3, size=11).astype("float32")


def scope_of(replicas):
    strategy = strategy_for(replicas)
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def one_number(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_true - y_pred))


class OneNumber(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return one_number(y_true, y_pred)


def trained(base, replicas, loss, weights):
    with scope_of(replicas):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((4,))
        model = base(inputs, keras.layers.Dense(1)(inputs))
        model.compile(keras.optimizers.SGD(0.05), loss)
    start = model.get_weights()
    history = model.fit(X, Y, sample_weight=weights, batch_size=5, shuffle=False, epochs=2, verbose=0)
    return start, model.get_weights(), history.history["loss"]


@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight", "sum", "function"])
def test_one_number_times_the_weights_of_the_global_batch(replicas, reduction):
    loss = one_number if reduction == "function" else OneNumber(reduction=reduction)
    start, expected, logs = trained(keras.Model, None, loss, WEIGHTS)
    _, found, found_logs = trained(DistributedModel, replicas, loss, WEIGHTS)
    way = max(np.max(np.abs(a - b)) for a, b in zip(expected, start, strict=True))
    difference = max(np.max(np.abs(a - b)) for a, b in zip(expected, found, strict=True))
    assert difference / way <= tolerances.weights(6)
    np.testing.assert_allclose(found_logs, logs, rtol=tolerances.logs(6))
    unweighted = trained(DistributedModel, replicas, loss, None)[1]
    if reduction != "mean_with_sample_weight":  # whose weights cancel out
        assert max(np.max(np.abs(a - b)) for a, b in zip(unweighted, found, strict=True)) / way > 1e-2


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_rows_never_meet_columns(replicas):
    with scope_of(replicas):
        inputs = keras.Input((4,))
        model = DistributedModel(inputs, keras.layers.Dense(2)(inputs))
        model.compile("sgd", "mse")
    with pytest.raises(BatchError, match="Targets and predictions have the same rows"):
        model.fit(X[:8], Y[:8, 0], batch_size=4, verbose=0)
    with scope_of(replicas):
        model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(X[:8], np.arange(8) % 2, batch_size=4, verbose=0)


def test_rows_never_meet_columns_in_a_loop_of_ones_own():
    loss = keras.losses.MeanSquaredError()

    def on_replica():
        y_pred = tf.ones((2, 2))
        return GlobalBatch.current(y_pred).loss(loss, tf.ones(2), y_pred)

    for _ in range(2):  # refused every time, not only when it is tried
        with pytest.raises(BatchError, match="Targets and predictions have the same rows"):
            strategy_for(2).run(on_replica)


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize(("rows", "batch"), [(7, 3), (3, 3), (1, 1)])
def test_ragged_predictions_with_fewer_rows_than_replicas(replicas, rows, batch):
    ragged = tf.ragged.constant([[1.0, 2.0], [0.5], [0.3, 0.1, 0.2], [1.0], [2.0, -1.0], [0.1], [0.7, 0.7]])

    class SumOfRow(DistributedModel):
        def __init__(self):
            super().__init__()
            self.scale = keras.layers.Dense(1, kernel_initializer="ones")

        def call(self, inputs):
            return self.scale(tf.reduce_sum(inputs, axis=1)[:, None])

    with scope_of(replicas):
        model = SumOfRow()
        model.compile("sgd", "mse")
    found = model.predict(tf.data.Dataset.from_tensor_slices((ragged[:rows],)).batch(batch), verbose=0)
    np.testing.assert_allclose(found, tf.reduce_sum(ragged[:rows], axis=1).numpy()[:, None], rtol=1e-6)
