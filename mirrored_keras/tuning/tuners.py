"""KerasTuner's tuners over `DistributedModel`."""

import keras_tuner

from mirrored_keras.tuning import oracles
from mirrored_keras.tuning.private import SavedWhole
from mirrored_keras.tuning.search import DistributedSearch


class Tuner(DistributedSearch, keras_tuner.Tuner, SavedWhole):
    """The base of your own tuners: `keras_tuner.Tuner` over `DistributedModel`.

    Takes an oracle of `mirrored_keras.tuning.oracles`; for all other arguments see `DistributedSearch`.

    Example:
        >>> import tempfile
        >>> from mirrored_keras import tuning
        >>> class Parabola(tuning.Tuner):
        ...     def run_trial(self, trial, *args, **kwargs):
        ...         return (trial.hyperparameters.Float("x", -1.0, 1.0) - 0.5) ** 2
        >>> oracle = tuning.oracles.RandomSearchOracle(max_trials=3, seed=1)
        >>> tuner = Parabola(oracle, directory=tempfile.mkdtemp())
        >>> tuner.search(verbose=0)
        >>> len(tuner.results())
        3
    """


class RandomSearch(DistributedSearch, keras_tuner.RandomSearch, SavedWhole):
    """`keras_tuner.RandomSearch` over `DistributedModel`; for what is added see `DistributedSearch`.

    Example:
        >>> import keras, numpy as np, tempfile
        >>> from mirrored_keras import tuning
        >>> def build(hp):
        ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(hp.Int("units", 1, 8)),
        ...                               keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        ...     return model
        >>> tuner = tuning.RandomSearch(build, "loss", max_trials=2, seed=1, directory=tempfile.mkdtemp())
        >>> tuner.search(np.ones((10, 4)), np.ones((10, 1)), batch_size=4, verbose=0)
        >>> type(tuner.get_best_models()[0]).__name__
        'DistributedModel'
    """

    oracle_class = oracles.RandomSearchOracle


class BayesianOptimization(DistributedSearch, keras_tuner.BayesianOptimization, SavedWhole):
    """`keras_tuner.BayesianOptimization` over `DistributedModel`; for what is added see `DistributedSearch`.

    It learns from failed trials, and does not try the same values twice.

    Example:
        >>> import tempfile
        >>> from mirrored_keras import tuning
        >>> class Parabola(tuning.BayesianOptimization):
        ...     def run_trial(self, trial, *args, **kwargs):
        ...         return (trial.hyperparameters.Float("x", -1.0, 1.0) - 0.5) ** 2
        >>> tuner = Parabola(max_trials=3, seed=1, directory=tempfile.mkdtemp())
        >>> tuner.search(verbose=0)
        >>> len(tuner.results())
        3
    """

    oracle_class = oracles.BayesianOptimizationOracle


class Hyperband(DistributedSearch, keras_tuner.Hyperband, SavedWhole):
    """`keras_tuner.Hyperband` over `DistributedModel`; for what is added see `DistributedSearch`.

    A trial that is continued goes on where it ended: weights, optimizer, learning rate, callbacks, random streams and
    place in the data; its score is the best of all its epochs. (KerasTuner goes on from the best epoch, with a new
    optimizer.)

    Example:
        >>> from mirrored_keras import tuning
        >>> tuning.Hyperband.oracle_class.__name__
        'HyperbandOracle'
    """

    oracle_class = oracles.HyperbandOracle


class GridSearch(DistributedSearch, keras_tuner.GridSearch, SavedWhole):
    """`keras_tuner.GridSearch` over `DistributedModel`; for what is added see `DistributedSearch`.

    Example:
        >>> import tempfile
        >>> from mirrored_keras import tuning
        >>> class Table(tuning.GridSearch):
        ...     def run_trial(self, trial, *args, **kwargs):
        ...         return trial.hyperparameters.Choice("x", [3, 1, 2])
        >>> tuner = Table(directory=tempfile.mkdtemp())
        >>> tuner.search(verbose=0)
        >>> [row["hp.x"] for row in tuner.results()]
        [3, 1, 2]
    """

    oracle_class = oracles.GridSearchOracle
