"""Models with one planted bug each: `check` must name its cause.

A comment `# planted` marks the line that `check` must point to, where it can know the line.
"""

import itertools

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from mirrored_keras import DistributedModel, GlobalBatch

CALLS = itertools.count()


def compiled(make=DistributedModel, layer=None, *, loss="mse", activation=None, optimizer=None, **options):
    inputs = keras.Input((4,))
    hidden = layers.Dense(5, activation="tanh")(inputs)
    hidden = layer(hidden) if layer else hidden
    model = make(inputs, layers.Dense(3, activation=activation)(hidden))
    model.compile(optimizer or keras.optimizers.SGD(0.1), loss, **options)
    return model


def plain_batch_norm():
    return compiled(layer=layers.BatchNormalization())  # planted


def dropout():
    return compiled(layer=layers.Dropout(0.5))  # planted


def batch_norm_and_dropout():
    return compiled(layer=keras.Sequential([layers.BatchNormalization(), layers.Dropout(0.5)]))


def dice():
    return compiled(loss=keras.losses.Dice(), activation="sigmoid")  # planted


def root_of_mean(y_true, y_pred):
    return ops.sqrt(ops.mean(ops.square(y_true - y_pred)))  # planted


def custom_loss():
    return compiled(loss=root_of_mean)


class BatchScaled(keras.losses.Loss):
    def call(self, y_true, y_pred):
        scale = ops.max(ops.abs(y_true))  # planted
        return ops.mean(ops.square(y_true - y_pred), axis=-1) / scale


def custom_loss_class():
    return compiled(loss=BatchScaled())


class RatioLoss(DistributedModel):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.sum(ops.square(y - y_pred)) / ops.sum(ops.abs(y))  # planted


def compute_loss():
    return compiled(RatioLoss, loss=None)


class KerasLossInside(DistributedModel):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.losses.MeanSquaredError()(y, y_pred)  # planted


def keras_loss_inside():
    return compiled(KerasLossInside, loss=None)


class SumPenalty(layers.Layer):
    def call(self, inputs):
        self.add_loss(0.01 * ops.sum(ops.square(inputs)))  # planted
        return inputs


def added_sum():
    return compiled(layer=SumPenalty())


class LargestPenalty(layers.Layer):
    def call(self, inputs):
        self.add_loss(0.1 * ops.max(ops.square(inputs)))  # planted
        return inputs


def added_maximum():
    return compiled(layer=LargestPenalty())


class UnscaledStep(DistributedModel):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)  # planted
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def unscaled_step():
    return compiled(UnscaledStep, loss=None)


class ForgottenShare(DistributedModel):
    def train_step(self, data):
        x, y = data
        batch = GlobalBatch(x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)  # planted
        batch.apply_gradients(self.optimizer, gradients, self.trainable_variables)
        return {"loss": loss}


def forgotten_share():
    return compiled(ForgottenShare, loss=None)


class ClippingStep(DistributedModel):
    def train_step(self, data):
        x, y = data
        batch = GlobalBatch(x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
            share = batch.share(loss)
        gradients = tape.gradient(share, self.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 0.1)  # planted
        batch.apply_gradients(self.optimizer, gradients, self.trainable_variables)
        return {"loss": loss}


def clipping_step():
    return compiled(ClippingStep, loss=None)


class SumInLogs(DistributedModel):
    def train_step(self, data):
        return {**super().train_step(data), "rows": tf.cast(tf.shape(data[0])[0], "float32")}  # planted


def sum_in_logs():
    return compiled(SumInLogs)


class Counter(layers.Layer):
    def build(self, shape):
        self.rows = self.add_weight(shape=(), initializer="zeros", trainable=False, name="rows")

    def call(self, inputs):
        self.rows.assign(self.rows + ops.cast(ops.shape(inputs)[0], "float32"))  # planted
        return inputs


def counter():
    return compiled(layer=Counter())


class Centred(layers.Layer):
    def call(self, inputs):
        return inputs - ops.mean(inputs, axis=0)  # planted


def mixed_rows():
    return compiled(layer=Centred())


class LargestError(keras.metrics.Metric):
    def __init__(self, name="largest_error"):
        super().__init__(name=name)
        self.largest = self.add_variable((), "zeros", name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):  # planted
        self.largest.assign(ops.maximum(self.largest, ops.max(ops.abs(y_true - y_pred))))

    def result(self):
        return self.largest


def metric():
    return compiled(metrics=[LargestError()])


def stock_model():
    return compiled(keras.Model, optimizer=keras.optimizers.SGD(0.1, clipnorm=0.3))


OUTSIDE = []


def made_outside():
    if not OUTSIDE:
        OUTSIDE.append(keras.optimizers.SGD(0.1))
    return compiled(optimizer=OUTSIDE[0])


def other_weights_every_time():
    start = keras.initializers.Constant(float(next(CALLS)))
    return compiled(layer=layers.Dense(5, kernel_initializer=start))


def other_model_every_time():
    return compiled(layer=layers.Rescaling(1 + 0.1 * next(CALLS)))


PLANTED = {
    plain_batch_norm: "batch-norm-not-synchronised",
    dropout: "random-layers",
    dice: "loss-over-the-whole-batch",
    custom_loss: "custom-loss-not-additive",
    custom_loss_class: "custom-loss-not-additive",
    compute_loss: "compute-loss-not-additive",
    keras_loss_inside: "keras-loss-called-directly",
    added_sum: "add-loss-is-a-sum",
    added_maximum: "add-loss-not-additive",
    unscaled_step: "train-step-without-scale",
    forgotten_share: "train-step-without-scale",
    clipping_step: "clipping-before-the-sum",
    sum_in_logs: "log-not-a-mean",
    counter: "state-of-own-layer",
    mixed_rows: "layer-mixes-rows",
    metric: "metric-not-additive",
    stock_model: "stock-keras-model",
    made_outside: "stops-on-several-replicas",
    other_weights_every_time: "weights-start-differently",
    other_model_every_time: "training-differs-between-runs",
}


def data():
    random = np.random.default_rng(3)
    rows = random.normal(size=(14, 4)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((rows, rows[:, :3] * 2)).batch(7)


def shuffled_data():
    return data().unbatch().shuffle(14, seed=next(CALLS)).batch(7)


def random_data():
    return data().map(lambda x, y: (x + float(next(CALLS)), y))


def data_by_replicas():
    return data().unbatch().batch(3 * tf.distribute.get_strategy().num_replicas_in_sync)


DATA = {
    shuffled_data: "data-differs-between-runs",
    random_data: "data-differs-between-runs",
    data_by_replicas: "data-depends-on-replicas",
}
