"""Losses of the invariance suite: Keras' own, functions, and classes as users write them."""

import keras
from keras import ops


def make_loss(kind, reduction="sum_over_batch_size"):
    """Returns a fresh Keras loss; its precision is that of `keras.config.floatx()`."""
    if kind == "sparse":
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    classes = {
        "mse": keras.losses.MeanSquaredError,
        "mae": keras.losses.MeanAbsoluteError,
        "huber": keras.losses.Huber,
    }
    return classes[kind](reduction=reduction)


def vector_function(y_true, y_pred):
    """One loss per row."""
    return ops.mean(ops.abs(y_true - y_pred) ** 1.5, axis=-1)


def scalar_function(y_true, y_pred):
    """One loss for all rows: their mean."""
    return ops.mean(ops.square(y_true - y_pred))


class VectorLoss(keras.losses.Loss):
    """One loss per row, reduced by Keras."""

    def call(self, y_true, y_pred):
        return ops.sum(ops.square(y_true - y_pred), axis=-1)


class ScalarLoss(keras.losses.Loss):
    """One loss for all rows: their mean."""

    def call(self, y_true, y_pred):
        return ops.mean(ops.abs(y_true - y_pred))
