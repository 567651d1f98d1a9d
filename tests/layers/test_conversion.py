"""`sync_batch_norm`: the same layers, weights and files, with the statistics of all rows."""

import keras
import numpy as np
import pytest

from layers.normalized import LAYERS, data
from mirrored_keras import DistributedModel, SetupError, SyncBatchNormalization, sync_batch_norm
from model.regression import assert_same_weights, made_under


class Block(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.parts = [LAYERS.Dense(4, activation="tanh"), LAYERS.BatchNormalization(momentum=0.6)]

    def build(self, shape):
        self.parts[0].build(shape)
        self.parts[1].build((None, 4))

    def call(self, inputs, training=None):
        return self.parts[1](self.parts[0](inputs), training=training)


class Subclassed(DistributedModel):
    def __init__(self):
        super().__init__()
        self.block, self.head = Block(), LAYERS.Dense(1)

    def call(self, inputs, training=None):
        return self.head(self.block(inputs, training=training))


def sequential():
    layers = [LAYERS.BatchNormalization(momentum=0.6), LAYERS.Dense(4, activation="tanh")]
    return keras.Sequential([keras.Input((3,)), *layers, LAYERS.BatchNormalization(), LAYERS.Dense(1)])


def nested():
    inputs = keras.Input((3,))
    inner = keras.Model(inputs, LAYERS.BatchNormalization()(LAYERS.Dense(4)(inputs)))
    return DistributedModel(inputs, LAYERS.Dense(1)(LAYERS.BatchNormalization()(inner(inputs))))


MODELS = {"subclassed": Subclassed, "sequential": sequential, "nested": nested}


def trained(kind, replicas, x, y):
    def make():
        model = DistributedModel.from_model(sync_batch_norm(MODELS[kind]()))
        model.compile(keras.optimizers.SGD(0.02), "mse")
        return model

    model = made_under(replicas, make)
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    return model


@pytest.mark.parametrize("kind", MODELS)
def test_converted_model_trains_as_one(kind):
    x, y = data((3,))
    assert_same_weights(trained(kind, None, x, y), trained(kind, 3, x, y))


def test_weights_and_names_stay():
    model = nested()
    names, weights = [w.path for w in model.weights], model.get_weights()
    assert sync_batch_norm(model) is model
    assert [w.path for w in model.weights] == names
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_conversion_of_a_model_that_has_run():
    """What was traced with the old statistics is not used again."""
    x, y = data((3,))

    def make():
        model = nested()
        model.compile(keras.optimizers.SGD(0.0), "mse")
        return model

    model = made_under(3, make)
    model.fit(x, y, batch_size=13, verbose=0)
    start = model.layers[-2].moving_variance.numpy()
    sync_batch_norm(model)
    model.fit(x, y, batch_size=13, shuffle=False, verbose=0)
    expected = made_under(None, lambda: sync_batch_norm(make()))
    expected.layers[-2].moving_variance.assign(start)
    expected.fit(x, y, batch_size=13, shuffle=False, verbose=0)
    np.testing.assert_allclose(
        model.layers[-2].moving_variance.numpy(), expected.layers[-2].moving_variance.numpy(), rtol=1e-6
    )


def test_converted_model_loads_with_plain_keras(tmp_path):
    model = sync_batch_norm(sequential())
    model.save(tmp_path / "model.keras")
    plain = keras.models.load_model(tmp_path / "model.keras", custom_objects={})
    assert [type(layer) for layer in plain.layers] == [type(layer) for layer in sequential().layers]
    assert plain.layers[0].synchronized
    x = data((3,))[0]
    np.testing.assert_array_equal(plain.predict(x, verbose=0), model.predict(x, verbose=0))


def test_own_layer_is_saved(tmp_path):
    model = keras.Sequential([keras.Input((3,)), SyncBatchNormalization(momentum=0.3, epsilon=0.1)])
    model.save(tmp_path / "model.keras")
    layer = keras.models.load_model(tmp_path / "model.keras").layers[0]
    assert type(layer) is SyncBatchNormalization
    assert layer.get_config() == model.layers[0].get_config()


def test_what_is_no_model():
    with pytest.raises(SetupError, match=r"`sync_batch_norm` takes a `keras.Model`"):
        sync_batch_norm(LAYERS.BatchNormalization())
