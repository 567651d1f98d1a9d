"""Small trainings that can be interrupted at any step, and what is compared between them."""

import itertools
import random

import keras
import numpy as np
import tensorflow as tf

from devices import strategy_for
from mirrored_keras import DistributedModel, Resume
from tolerances import SMALLEST_LOG

ROWS = 22  # with batches of 4: a short last one, which leaves replicas without rows
EPOCHS = 3


class Interrupted(Exception):
    pass


class Forgetful(keras.callbacks.Callback):
    """Leaves nothing in a state."""

    def get_state(self):
        return None

    def set_state(self, state):
        pass


class InterruptAfter(Forgetful):
    """Raises after so many steps of this process: in the middle of a step as far as others can see."""

    def __init__(self, steps):
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left < 0:
            raise Interrupted


def arrays(rows=ROWS):
    numbers = np.random.RandomState(3)
    x = numbers.normal(size=(rows, 5)).astype("float32")
    y = numbers.normal(size=(rows, 1)).astype("float32")
    weight = numbers.uniform(0.2, 2.0, size=(rows,)).astype("float32")
    return x, y, weight


def dataset(rows=ROWS, size=4):
    return tf.data.Dataset.from_tensor_slices(arrays(rows)).shuffle(rows, seed=7).batch(size).prefetch(1)


def build(replicas, *, optimizer="adam", **options):
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
        model.compile(optimizer, "mse", metrics=["mae"], randomness="row", **options)
        model.optimizer.build(model.trainable_variables)
    return model


def variables_of(model):
    return [*model.weights, *model.optimizer.variables]


def numbers_of(model):
    return [np.asarray(variable.value) for variable in variables_of(model)]


class Models:
    """One compiled model per kind and number of replicas: what a new process has, without tracing it once more.

    Before a `fit` that is to go on, every number of the model is spoilt: what a state leaves out shows.
    """

    def __init__(self, make=build, **options):
        self._make, self._options, self._made = make, options, {}

    def fresh(self, replicas):
        if replicas not in self._made:
            model = self._make(replicas, **self._options)
            self._made[replicas] = model, numbers_of(model), model.get_random_state()
        model, numbers, random_state = self._made[replicas]
        for variable, number in zip(variables_of(model), numbers, strict=True):
            variable.assign(number)
        model.set_random_state([*random_state[:-1], [77, 0]])
        _seed_process(12)
        return model

    def spoilt(self, replicas):
        model = self.fresh(replicas)
        for variable in variables_of(model):
            if "float" in variable.dtype:
                variable.assign(np.full(variable.shape, 0.7))
        model.set_random_state([[1, 2]] * (len(model.get_random_state()) - 1) + [[]])
        _seed_process(13)
        return model

    def whole(self, replicas, fit, folder, callbacks=()):
        """Trains without a break; returns the model's numbers, the history and the callbacks."""
        model = self.fresh(replicas)
        parts = [callback() for callback in callbacks]
        history = fit(model, [Resume(folder), *parts] if folder else parts)
        return numbers_of(model), history, parts

    def in_parts(self, replicas, steps, fit, folder, *, callbacks=(), every_steps=1):
        """Trains with breaks after so many steps, each part on another number of replicas."""
        for part, (count, after) in enumerate(zip(itertools.cycle(replicas), [*steps, 10**6], strict=False)):
            model = self.spoilt(count) if part else self.fresh(count)
            parts = [callback() for callback in callbacks]
            try:
                history = fit(model, [Resume(folder, every_steps=every_steps), *parts, InterruptAfter(after)])
            except Interrupted:
                continue
            return numbers_of(model), history, parts
        raise AssertionError("training was interrupted to the end")


def largest_error(numbers, expected):
    """The largest difference of one number, relative to the largest distance from 0 that numbers of its kind have."""
    differences = [np.max(np.abs(a.astype("float64") - b)) for a, b in zip(numbers, expected, strict=True) if a.size]
    return max(differences)


def largest_log_error(history, expected):
    assert history.epoch == expected.epoch
    assert set(history.history) == set(expected.history)
    errors = [
        abs(a - b) / max(abs(b), SMALLEST_LOG)
        for name, values in expected.history.items()
        for a, b in zip(history.history[name], values, strict=True)
    ]
    return max(errors)


def _seed_process(seed):
    # not `keras.utils.set_random_seed`: it forgets the generator that a traced model draws from
    random.seed(seed)
    np.random.seed(seed)
    tf.random.set_seed(12)  # seeds of a dataset follow from it, in a new process too
