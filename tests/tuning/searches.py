"""Small searches: data whose batches do not divide evenly, models, and tuners that train nothing."""

import keras
import numpy as np

from mirrored_keras import tuning

ROWS, HELD_OUT = 50, 22  # in batches of 16, the last one has 2 rows: fewer than 4 replicas


def data():
    numbers = np.random.RandomState(4)
    x = numbers.normal(size=(ROWS + HELD_OUT, 4)).astype("float32")
    # rows of unequal size, so that a mean of means is another number than the mean
    y = (3 * x[:, :1] - x[:, 1:2] ** 2 + numbers.normal(size=(len(x), 1))).astype("float32")
    return x[:ROWS], y[:ROWS], (x[ROWS:], y[ROWS:])


def build(hp, eager=False):
    """A plain model."""
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(hp.Int("units", 2, 9), activation="tanh"),
            keras.layers.Dense(1),
        ]
    )
    rate = hp.Float("rate", 1e-2, 5e-2, sampling="log")
    model.compile(keras.optimizers.SGD(rate, momentum=0.5), "mse", metrics=["mae"], run_eagerly=eager)
    return model


def build_eager(hp):
    """The same without tracing, for tests that are not about numbers."""
    return build(hp, eager=True)


def search(tuner, epochs=2, **options):
    x, y, held_out = data()
    tuner.search(x, y, epochs=epochs, batch_size=16, validation_data=held_out, shuffle=False, verbose=0, **options)
    return tuner


class Function(tuning.Tuner):
    """Evaluates a function of the hyperparameters instead of training."""

    def __init__(self, oracle, function, **options):
        self.function, self.calls = function, []
        super().__init__(oracle, **options)

    def run_trial(self, trial, *args, **kwargs):
        self.calls.append(trial.trial_id)
        return self.function(trial.hyperparameters)


def function_search(function, folder, *, oracle=None, **options):
    """Returns a tuner that has searched the minimum of a function."""
    oracle = oracle or tuning.oracles.RandomSearchOracle(max_trials=options.pop("max_trials", 6), seed=3)
    tuner = Function(oracle, function, directory=folder, **options)
    tuner.search(verbose=0)
    return tuner
