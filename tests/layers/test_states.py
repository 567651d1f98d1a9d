"""Variables that custom layers update in `call`: a declared aggregation is exact, the default is stated."""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from layers.normalized import assert_one_set_of_states, data, fitted, model_of


class Counting(keras.layers.Layer):
    """Counts rows and steps and keeps a running mean."""

    def __init__(self, *, rows="sum", mean="mean", steps="only_first_replica"):
        super().__init__()
        self.rows = self.state("rows", "int64", rows)
        self.mean = self.state("mean", "float32", mean)
        self.steps = self.state("steps", "int32", steps)

    def state(self, name, dtype, aggregation):
        return self.add_weight(
            shape=(), dtype=dtype, initializer="zeros", trainable=False, aggregation=aggregation, name=name
        )

    def call(self, inputs, training=False):
        if training:
            self.rows.assign_add(tf.shape(inputs, out_type="int64")[0])
            self.mean.assign(0.5 * self.mean + 0.5 * keras.ops.mean(inputs))
            self.steps.assign_add(1)
        return inputs


@functools.cache
def states(replicas, rows=13, **options):
    x, y = data((3,), rows=rows)
    model, _, _ = fitted(model_of((3,), Counting, **options), replicas, x, y, epochs=2)
    if replicas:
        assert_one_set_of_states(model)
    layer = model.layers[1]
    return [variable.numpy() for variable in (layer.rows, layer.mean, layer.steps)]


@pytest.mark.parametrize("replicas", [2, 4])
def test_declared_aggregation(replicas):
    rows, mean, steps = states(None)
    assert rows == 26 and steps == 8
    many = states(replicas)
    assert (many[0], many[2]) == (rows, steps)
    np.testing.assert_allclose(many[1], mean, rtol=2e-6)


def test_declared_aggregation_eagerly():
    rows, mean, steps = states(3, rows=5, run_eagerly=True)
    assert (rows, steps) == (10, 4)
    np.testing.assert_allclose(mean, states(None, rows=5)[1], rtol=2e-6)


def test_default_is_warned_about_once():
    """The mean of floats; the first replica's value of all others: 2 of 4 rows, and the only row of the last batch."""
    make = model_of((3,), lambda: Counting(rows="none", mean="none", steps="none"))
    x, y = data((3,))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, _, _ = fitted(make, 3, x, y)
    (text,) = [str(warning.message) for warning in caught if "in `call`" in str(warning.message)]
    assert "updates 'rows'" in text and "first replica's value" in text and 'aggregation="sum"' in text
    layer = model.layers[1]
    assert_one_set_of_states(model)
    assert layer.rows.numpy() == 2 * 3 + 1
    one, _, _ = fitted(model_of((3,), Counting), None, x, y)
    np.testing.assert_allclose(layer.mean.numpy(), one.layers[1].mean.numpy(), rtol=2e-6)


def test_no_warning_for_keras_layers():
    """Warnings are errors in the tests: plain and spectral normalisation, and random layers, give none."""
    layers = keras.layers
    make = model_of(
        (3,),
        lambda: layers.SpectralNormalization(layers.Dense(4)),
        lambda: layers.BatchNormalization(),
        lambda: layers.Dropout(0.3, seed=3),
    )
    model, _, _ = fitted(make, 3, *data((3,)))
    assert_one_set_of_states(model)


class PartPerReplica(keras.layers.Layer):
    """A counter in Keras' metrics style: every replica keeps a part, and reading adds the parts up."""

    def __init__(self):
        super().__init__()
        self.rows = keras.Variable(
            0.0, trainable=False, aggregation="sum", synchronization="on_read", name="rows", dtype="float32"
        )

    def call(self, inputs):
        self.rows.assign_add(keras.ops.cast(keras.ops.shape(inputs)[0], "float32"))
        return inputs


def test_parts_that_reading_adds_up():
    x, y = data((3,))
    model, _, _ = fitted(model_of((3,), PartPerReplica), 3, x, y)
    assert float(tf.convert_to_tensor(model.layers[1].rows.value)) == 13.0
    model.predict(x[:4], verbose=0, batch_size=4)
    assert float(tf.convert_to_tensor(model.layers[1].rows.value)) == 17.0
