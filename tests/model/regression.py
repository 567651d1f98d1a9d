"""A small regression problem whose rows differ, in batches that never divide."""

import contextlib

import keras
import numpy as np
import tensorflow as tf

from devices import strategy_for

ROWS, BATCH = 19, 7  # 7, 7 and 5 rows
RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=(ROWS, 5)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) * np.linspace(0.2, 3.0, ROWS)[:, None]).astype("float32")
LARGEST_DIFFERENCE = 2e-6  # of weights near 1 after three steps; measured: at most 1.2e-7


def dataset(batch=BATCH):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch)


def perceptron(base, **compiled):
    inputs = keras.Input((5,))
    hidden = keras.layers.Dense(4, activation="tanh")(inputs)
    model = base(inputs, keras.layers.Dense(1)(hidden))
    model.compile(**{"optimizer": keras.optimizers.SGD(0.05), "loss": "mse", **compiled})
    return model


def made_under(replicas, make):
    """Makes a model with fixed weights under R replicas, or without a strategy for `None`."""
    with strategy_for(replicas).scope() if replicas else contextlib.nullcontext():
        keras.utils.set_random_seed(1)
        return make()


def assert_same_weights(one, many):
    for a, b in zip(one.get_weights(), many.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=LARGEST_DIFFERENCE)


def assert_same_logs(one, many):
    assert one.keys() == many.keys()
    for name in one:
        np.testing.assert_allclose(one[name], many[name], rtol=2e-6, err_msg=name)


def assert_trains_as_one(make, replicas=3, run=lambda model: model.fit(dataset(), verbose=0, shuffle=False).history):
    """Runs `make`'s model on one and on R replicas and compares weights and logs."""
    one, many = made_under(None, make), made_under(replicas, make)
    assert_same_logs(run(one), run(many))
    assert_same_weights(one, many)
    return one, many
