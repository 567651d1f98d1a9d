"""Layers whose kernels cannot take a batch of no rows, on replicas that have none."""

import keras
import numpy as np
import pytest

from mirrored_keras import DistributedModel
from model.regression import assert_same_weights, made_under

pytestmark = pytest.mark.table(every=3)

ROWS, BATCH = 7, 2  # on three replicas 1, 1, 0 rows, and 1, 0, 0 in the last batch
LAYERS = keras.layers

KINDS = {
    "convolution": ((8, 8, 1), lambda: [LAYERS.Conv2D(4, 3, activation="relu")]),
    "two convolutions": ((8, 8, 1), lambda: [LAYERS.Conv2D(4, 3), LAYERS.Conv2D(3, 3)]),
    "separable": ((8, 8, 2), lambda: [LAYERS.SeparableConv2D(4, 3, activation="relu")]),
    "depthwise": ((8, 8, 2), lambda: [LAYERS.DepthwiseConv2D(3, activation="relu")]),
    "one dimension": ((8, 2), lambda: [LAYERS.Conv1D(3, 3, activation="relu")]),
    "three dimensions": ((6, 6, 6, 1), lambda: [LAYERS.Conv3D(3, 3, activation="relu"), LAYERS.MaxPooling3D()]),
    "recurrent convolution": ((3, 6, 6, 1), lambda: [LAYERS.ConvLSTM2D(2, 3)]),
    "recurrent": ((3, 2), lambda: [LAYERS.LSTM(3)]),
    "synchronised normalisation": ((3,), lambda: [LAYERS.BatchNormalization(synchronized=True)]),
}


def trained(kind, replicas, **compiled):
    shape, layers = KINDS[kind] if isinstance(kind, str) else kind
    random = np.random.default_rng(5)
    x, y = random.normal(size=(ROWS, *shape)).astype("float32"), np.linspace(0.2, 3.0, ROWS)[:, None]

    def make():
        outputs = inputs = keras.Input(shape)
        for layer in layers():
            outputs = layer(outputs)
        model = DistributedModel(inputs, LAYERS.Dense(1)(LAYERS.Flatten()(outputs)))
        model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"], **compiled)
        return model

    model = made_under(replicas, make)
    history = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0).history
    seen = [*history["loss"], *history["mae"], *model.evaluate(x[:1], y[:1], verbose=0)]
    return model, seen, model.predict(x[:4], verbose=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("replicas", [2, 3])
def test_layer(kind, replicas):
    one, one_logs, one_rows = trained(kind, None)
    many, many_logs, many_rows = trained(kind, replicas)
    assert_same_weights(one, many)
    np.testing.assert_allclose(many_logs, one_logs, rtol=5e-6)
    assert many_rows.shape == one_rows.shape
    np.testing.assert_allclose(many_rows, one_rows, rtol=0, atol=2e-6)


def test_eagerly():
    one, one_logs, _ = trained("recurrent", None, run_eagerly=True)
    many, many_logs, _ = trained("recurrent", 3, run_eagerly=True)
    assert_same_weights(one, many)
    np.testing.assert_allclose(many_logs, one_logs, rtol=5e-6)


def test_moving_statistics_stay_finite_on_every_replica():
    model, logs, rows = trained(((3,), lambda: [LAYERS.BatchNormalization()]), 3)
    assert np.isfinite(logs).all() and np.isfinite(rows).all()
    for variable in model.weights:
        assert all(np.isfinite(copy.numpy()).all() for copy in variable.value.values), variable.path


def test_metric_object_around_a_function_of_the_batch_stays_finite():
    def mean_error(y_true, y_pred):
        return keras.ops.mean(keras.ops.abs(y_true - y_pred))

    def make():
        inputs = keras.Input((3,))
        model = DistributedModel(inputs, LAYERS.Dense(1)(inputs))
        model.compile("sgd", "mse", metrics=[keras.metrics.MeanMetricWrapper(mean_error, name="error")])
        return model

    model = made_under(4, make)
    with pytest.warns(UserWarning, match="GlobalBatchMetric"):  # finite, yet not the number of one replica
        history = model.fit(np.ones((9, 3)), np.ones((9, 1)), batch_size=8, verbose=0).history
    assert np.isfinite(history["error"][0])
