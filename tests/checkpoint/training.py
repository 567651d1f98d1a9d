"""Small trainings that can be interrupted at any step, and what is compared between them."""

import keras
import numpy as np
import tensorflow as tf

from devices import strategy_for
from mirrored_keras import DistributedModel, Resume

ROWS = 22  # with batches of 4: a short last one, which leaves replicas without rows
EPOCHS = 3


class Interrupted(Exception):
    pass


class InterruptAfter(keras.callbacks.Callback):
    """Raises after so many steps of this process: in the middle of a step as far as others can see."""

    def __init__(self, steps):
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left < 0:
            raise Interrupted

    def get_state(self):
        return None

    def set_state(self, state):
        pass


def arrays(rows=ROWS):
    numbers = np.random.RandomState(3)
    x = numbers.normal(size=(rows, 5)).astype("float32")
    y = numbers.normal(size=(rows, 1)).astype("float32")
    weight = numbers.uniform(0.2, 2.0, size=(rows,)).astype("float32")
    return x, y, weight


def dataset(rows=ROWS, size=4):
    return tf.data.Dataset.from_tensor_slices(arrays(rows)).shuffle(rows, seed=7).batch(size).prefetch(1)


def build(replicas, *, optimizer="adam", micro_batches=1, **options):
    """A model whose layers draw, normalise and count; initial weights are the same for every number of replicas."""
    strategy = strategy_for(replicas)
    scope = strategy.scope() if strategy is not None else tf.init_scope()
    with scope:
        keras.utils.set_random_seed(11)
        inputs = keras.Input((5,))
        hidden = keras.layers.Dense(6, activation="tanh")(inputs)
        hidden = keras.layers.BatchNormalization(synchronized=True)(hidden)
        hidden = keras.layers.Dropout(0.25, seed=4)(hidden)
        model = DistributedModel(inputs, keras.layers.Dense(1)(hidden))
        optimizer = optimizer() if callable(optimizer) else keras.optimizers.get(optimizer)
        model.compile(
            optimizer, "mse", metrics=["mae"], randomness="row", micro_batches=micro_batches, **options
        )
    return model


def numbers_of(model):
    variables = [*model.weights, *model.optimizer.variables]
    return [np.asarray(variable.value) for variable in variables]


def trained(replicas, fit, *, folder=None, interrupt=None, every_steps=1, make=build, callbacks=(), **options):
    """Trains a fresh model, on from what is in the folder; returns model and history, or `None` if interrupted."""
    model = make(replicas, **options)
    parts = [*[callback() for callback in callbacks]]
    if folder is not None:
        parts = [Resume(folder, every_steps=every_steps), *parts]
    if interrupt is not None:
        parts.append(InterruptAfter(interrupt))
    try:
        history = fit(model, parts)
    except Interrupted:
        return None
    return model, history
