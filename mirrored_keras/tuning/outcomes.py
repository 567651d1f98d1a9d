"""Whether a result counts: finite, with a reason where it is not."""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf


class NotFiniteError(Exception):
    """The objective of a trial is no finite number; the trial failed, with this as its reason."""


class InfeasibleError(Exception):
    """The model of a trial cannot be trained on these devices; the trial is not tried again."""


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error says that memory was not enough.

    Args:
        error: From `fit` or `build`.

    Example:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(ValueError())
        (True, False)
    """
    return isinstance(error, (tf.errors.ResourceExhaustedError, MemoryError))


def checked_result(result: Any, objective: Any, *, diverged: str) -> Any:
    """Returns a result whose best value is finite, in the form that KerasTuner chooses the best epoch from.

    Args:
        result: What `fit` returned: a history, a dictionary of metrics, a number, or a list of these.
        objective: Of the search.
        diverged: "fail" or "best_epoch": whether a history that ends with NaN or infinity counts by an earlier epoch.

    Returns:
        The result; in a history, the worst value that there is stands for what is not finite.

    Raises:
        NotFiniteError: There is no finite value, or the history ends with one that is not.
    """
    if isinstance(result, list):
        return [checked_result(part, objective, diverged=diverged) for part in result]
    if isinstance(result, keras.callbacks.History):
        return _checked_history(result, objective, diverged=diverged)
    metrics = result if isinstance(result, dict) else {objective.name: result}
    names = [name for name in objective_names(objective) if name in metrics] or [objective.name]
    for name in names:
        if name in metrics and not _is_finite(metrics[name]):
            raise NotFiniteError(f"The objective `{name}` is {float(metrics[name])}.")
    return result


def objective_names(objective: Any) -> list[str]:
    """Returns the names of the metrics that an objective is made of.

    Args:
        objective: Of KerasTuner.
    """
    return [part.name for part in getattr(objective, "objectives", [objective])]


def _checked_history(history, objective, *, diverged):
    names = [name for name in objective_names(objective) if name in history.history]
    if not names:
        return history
    for name in names:
        if not any(_is_finite(value) for value in history.history[name]):
            raise NotFiniteError(f"The objective `{name}` was never a finite number: {history.history[name]}.")
    if diverged == "fail":
        # a loss that is NaN has spoiled the weights, whatever a count of right answers still says
        for name in dict.fromkeys([*names, "loss"]):
            values = history.history.get(name, [0.0])
            if values and not _is_finite(values[-1]):
                epoch = next(i for i in range(len(values)) if not any(_is_finite(v) for v in values[i:]))
                raise NotFiniteError(
                    f"Training diverged: `{name}` is {float(values[-1])} from epoch {epoch} on. "
                    'An earlier epoch counts with diverged="best_epoch".'
                )
    return _without_infinities(history, objective, names)


def _without_infinities(history, objective, names):
    directions = getattr(objective, "name_to_direction", {objective.name: objective.direction})
    clean = keras.callbacks.History()
    clean.epoch, clean.history = list(history.epoch), dict(history.history)
    for name in names:
        worst = -np.inf if directions[name] == "max" else np.inf
        clean.history[name] = [v if _is_finite(v) else worst for v in history.history[name]]
    return clean


def _is_finite(value):
    return math.isfinite(float(np.asarray(value)))
