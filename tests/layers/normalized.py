"""Small models around a normalising layer, trained on one and on several replicas on data that never divides."""

import keras
import numpy as np

import tolerances
from invariance.compare import assert_within, weights_error
from mirrored_keras import DistributedModel
from model.regression import made_under

LAYERS = keras.layers


def data(shape, rows=13):
    """Rows that differ in mean and spread, so that every wrong statistic shows."""
    random = np.random.default_rng(5)
    scale = np.linspace(0.2, 3.0, rows).reshape(-1, *[1] * len(shape))
    x = (random.normal(size=(rows, *shape)) * scale + np.sin(7 * scale)).astype(keras.config.floatx())
    return x, np.linspace(0.2, 3.0, rows)[:, None].astype(keras.config.floatx())


def model_of(shape, *layers, base=DistributedModel, **compiled):
    """Returns a function that makes the model, for `made_under`."""

    def make():
        outputs = inputs = keras.Input(shape)
        for layer in layers:
            outputs = layer()(outputs)
        if len(outputs.shape) > 2:
            outputs = LAYERS.Flatten()(outputs)
        model = base(inputs, LAYERS.Dense(1, name="head")(outputs))
        model.compile(**{"optimizer": keras.optimizers.SGD(0.05), "loss": "mse", **compiled})
        return model

    return make


def fitted(make, replicas, x, y, *, batch=4, epochs=1, **fit):
    """Returns the model, its first weights and the losses of the epochs."""
    model = made_under(replicas, make)
    start = model.get_weights()
    history = model.fit(x, y, batch_size=batch, shuffle=False, verbose=0, epochs=epochs, **fit).history
    return model, start, history["loss"]


def assert_trains_as_one(make, replicas, x, y, *, batch=4, epochs=1, **fit):
    """Compares weights, moving statistics and losses with one replica; returns both models."""
    one, start, one_loss = fitted(make, None, x, y, batch=batch, epochs=epochs, **fit)
    many, _, many_loss = fitted(make, replicas, x, y, batch=batch, epochs=epochs, **fit)
    steps, floatx = epochs * -(-len(x) // batch), keras.config.floatx()
    error = weights_error(one.get_weights(), many.get_weights(), start)
    assert_within(error, tolerances.weights(steps, floatx), "weights")
    np.testing.assert_allclose(many_loss, one_loss, rtol=tolerances.logs(steps, floatx))
    return one, many


def copies(variable):
    """Returns the values of all replicas."""
    return [copy.numpy() for copy in variable.value.values]


def assert_one_set_of_states(model):
    """Fails unless every replica holds the same finite numbers, to the bit."""
    for variable in model.non_trainable_variables:
        first, *others = copies(variable)
        assert np.isfinite(first).all(), variable.path
        for other in others:
            np.testing.assert_array_equal(first, other, err_msg=variable.path)
