"""Functions for `mirrored-keras doctor`: a clean model, models with one fault each, and datasets."""

import keras
import tensorflow as tf

from mirrored_keras import DistributedModel, mirrored_strategy


def linear(base=DistributedModel, *layers, **compiled):
    inputs = keras.Input((4,))
    hidden = inputs
    for layer in layers:
        hidden = layer(hidden)
    model = base(inputs, keras.layers.Dense(2)(hidden))
    options = {"optimizer": "sgd", "loss": "mse", "steps_per_execution": "auto", **compiled}
    model.compile(**options)
    return model


def clean():
    return linear()


def stock():
    return linear(keras.Model, steps_per_execution=1)


def fails():
    raise ValueError("no such column")


def no_model():
    return 3


def in_own_scope():
    with mirrored_strategy(["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()).scope():
        return clean()


def batches():
    return tf.data.Dataset.from_tensor_slices((tf.ones((8, 4)), tf.ones((8, 2)))).batch(4).prefetch(1)
