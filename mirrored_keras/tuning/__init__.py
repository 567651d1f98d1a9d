"""Hyperparameter search with KerasTuner over `DistributedModel`: `from mirrored_keras import tuning as keras_tuner`.

The names below are loaded at first use, so that importing this package starts neither TensorFlow nor KerasTuner.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_tuner import HyperModel, HyperParameters, Objective, errors, synchronized

    from mirrored_keras.errors import TuningError
    from mirrored_keras.tuning import oracles
    from mirrored_keras.tuning.oracles import Oracle
    from mirrored_keras.tuning.pruning import MedianPruner, Pruner, SuccessiveHalvingPruner
    from mirrored_keras.tuning.search import DistributedSearch
    from mirrored_keras.tuning.space import global_batch_size, scaled_learning_rate
    from mirrored_keras.tuning.trial_context import TrialContext
    from mirrored_keras.tuning.tuners import BayesianOptimization, GridSearch, Hyperband, RandomSearch, Tuner

__all__ = [
    "BayesianOptimization",
    "DistributedSearch",
    "GridSearch",
    "HyperModel",
    "HyperParameters",
    "Hyperband",
    "MedianPruner",
    "Objective",
    "Oracle",
    "Pruner",
    "RandomSearch",
    "SuccessiveHalvingPruner",
    "TrialContext",
    "Tuner",
    "TuningError",
    "errors",
    "global_batch_size",
    "oracles",
    "scaled_learning_rate",
    "synchronized",
]

_KERAS_TUNER = ("HyperModel", "HyperParameters", "Objective", "errors", "synchronized")
_TUNERS = ("BayesianOptimization", "GridSearch", "Hyperband", "RandomSearch", "Tuner")
_MODULES = {
    **dict.fromkeys(_KERAS_TUNER, "keras_tuner"),
    **dict.fromkeys(_TUNERS, "mirrored_keras.tuning.tuners"),
    **dict.fromkeys(("MedianPruner", "Pruner", "SuccessiveHalvingPruner"), "mirrored_keras.tuning.pruning"),
    **dict.fromkeys(("global_batch_size", "scaled_learning_rate"), "mirrored_keras.tuning.space"),
    "DistributedSearch": "mirrored_keras.tuning.search",
    "Oracle": "mirrored_keras.tuning.oracles",
    "TrialContext": "mirrored_keras.tuning.trial_context",
    "TuningError": "mirrored_keras.errors",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    if name not in ("TuningError", "TrialContext"):
        from mirrored_keras.tuning import requirements

        requirements.check()
    if name == "oracles":
        value = importlib.import_module("mirrored_keras.tuning.oracles")
    else:
        value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
