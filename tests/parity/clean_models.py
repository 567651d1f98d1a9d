"""Models of many styles that N replicas train as one: `check` must pass on each."""

import keras
import tensorflow as tf
from keras import layers, ops

from mirrored_keras import DistributedModel, GlobalBatch, GlobalBatchLoss


def sgd(**options):
    return keras.optimizers.SGD(0.1, **options)


def functional():
    inputs = keras.Input((4,))
    model = DistributedModel(inputs, layers.Dense(3)(layers.Dense(5, activation="tanh")(inputs)))
    model.compile(keras.optimizers.Adam(0.01, clipnorm=0.3, epsilon=1e-3), "mse", metrics=["mae"])
    return model


class Subclassed(DistributedModel):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = layers.Dense(5, activation="tanh"), layers.Dense(3)

    def call(self, inputs):
        return self.out(self.hidden(inputs))


def subclassed():
    model = Subclassed()
    model.compile(sgd(momentum=0.9), "mse")
    return model


def from_sequential():
    model = DistributedModel.from_model(keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="softmax")]))
    model.compile(sgd(), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def nested():
    inner_inputs = keras.Input((4,))
    inner = keras.Model(inner_inputs, layers.Dense(5, kernel_regularizer="l2", activation="tanh")(inner_inputs))
    inputs = keras.Input((4,))
    model = DistributedModel(inputs, layers.Dense(1)(inner(inputs)))
    model.compile(sgd(global_clipnorm=0.5), keras.losses.Huber())
    return model


def two_outputs():
    inputs = keras.Input((4,))
    outputs = {"a": layers.Dense(3, name="a")(inputs), "b": layers.Dense(1, name="b", activation="sigmoid")(inputs)}
    model = DistributedModel(inputs, outputs)
    model.compile(sgd(), {"a": "mse", "b": "binary_crossentropy"}, loss_weights={"a": 0.5, "b": 2.0})
    return model


def masked_lstm():
    inputs = keras.Input((None,), dtype="int32")
    words = layers.Embedding(11, 4, mask_zero=True)(inputs)
    model = DistributedModel(inputs, layers.Dense(3)(layers.LSTM(3, return_sequences=True)(words)))
    model.compile(sgd(), keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    return model


def synchronised_batch_norm():
    inputs = keras.Input((4,))
    hidden = layers.BatchNormalization(synchronized=True)(inputs)
    model = DistributedModel(inputs, layers.Dense(3)(hidden))
    model.compile(sgd(), "mse")
    return model


def double_precision():
    keras.config.set_floatx("float64")
    try:
        return functional()
    finally:
        keras.config.set_floatx("float32")


class OwnStep(DistributedModel):
    def train_step(self, data):
        x, y = data
        batch = GlobalBatch(x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
            share = batch.share(loss)
        gradients = tape.gradient(share, self.trainable_variables)
        batch.apply_gradients(self.optimizer, gradients, self.trainable_variables)
        return {"loss": loss}


def own_step():
    inputs = keras.Input((4,))
    model = OwnStep(inputs, layers.Dense(3)(inputs))
    model.compile(sgd())
    return model


def error_per_row(y_true, y_pred):
    return ops.mean(ops.abs(y_true - y_pred) ** 1.5, axis=-1)


def own_loss():
    inputs = keras.Input((4,))
    model = DistributedModel(inputs, layers.Dense(3)(inputs))
    model.compile(sgd(), error_per_row)
    return model


class Added(layers.Layer):
    def call(self, inputs):
        self.add_loss(0.3 * ops.mean(ops.square(inputs)))
        return inputs


def added_mean():
    inputs = keras.Input((4,))
    model = DistributedModel(inputs, layers.Dense(3)(Added()(layers.Dense(5, activation="tanh")(inputs))))
    model.compile(sgd(gradient_accumulation_steps=2), "mse")
    return model


def half_precision():
    inputs = keras.Input((4,))
    hidden = layers.Dense(5, activation="tanh", dtype="mixed_bfloat16")(inputs)
    model = DistributedModel(inputs, layers.Dense(3, dtype="float32")(hidden))
    model.compile(sgd(), "mse")
    return model


def dice_of_all_rows():
    inputs = keras.Input((4,))
    model = DistributedModel(inputs, layers.Dense(3, activation="sigmoid")(inputs))
    model.compile(sgd(), GlobalBatchLoss(keras.losses.Dice()))
    return model


def dropout_by_row():
    inputs = keras.Input((4,))
    model = DistributedModel(inputs, layers.Dense(3)(layers.Dropout(0.5)(inputs)))
    model.compile(sgd(), "mse", randomness="row")
    return model


class Penalised(DistributedModel):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred, sample_weight, training) + 0.3 * ops.mean(ops.abs(y_pred))


def own_compute_loss():
    inputs = keras.Input((4,))
    model = Penalised(inputs, layers.Dense(3)(inputs))
    model.compile(sgd(clipvalue=0.05), "mse")
    return model


MODELS = (
    functional,
    subclassed,
    from_sequential,
    nested,
    two_outputs,
    masked_lstm,
    synchronised_batch_norm,
    double_precision,
    own_step,
    own_loss,
    added_mean,
    half_precision,
    dice_of_all_rows,
    dropout_by_row,
    own_compute_loss,
)
