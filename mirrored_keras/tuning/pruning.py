"""Stops trials early that do worse than others did at the same epoch."""

import abc
import dataclasses
import math
import os
from typing import Any

import keras
import numpy as np

from mirrored_keras.errors import TuningError, message
from mirrored_keras.tuning import json_files
from mirrored_keras.tuning.trial_context import TrialContext
from mirrored_keras.tuning.trial_record import FILE, TrialRecord


class Pruner(abc.ABC):
    """The base of rules that stop trials: `MedianPruner`, `SuccessiveHalvingPruner`, or your own."""

    @abc.abstractmethod
    def why_stop(self, values: list[float], others: list[list[float]], *, direction: str) -> str | None:
        """Says why a trial is stopped, `None` if it goes on; called at the end of every epoch.

        Args:
            values: The objective after each epoch of this execution so far.
            others: The same for other trials, as far as each of them came.
            direction: "min" or "max".
        """


@dataclasses.dataclass(frozen=True)
class MedianPruner(Pruner):
    """Stops a trial whose best value so far is worse than the median of the other trials at the same epoch.

    Args:
        first_epochs: Epochs that every trial trains, at least.
        first_trials: Trials that must have come as far, at least.

    Example:
        >>> from mirrored_keras.tuning import MedianPruner
        >>> pruner = MedianPruner(first_epochs=1, first_trials=2)
        >>> pruner.why_stop([0.9, 0.8], [[0.5, 0.4], [0.6, 0.5]], direction="min")
        'epoch 1: best value 0.8, the median of 2 other trials is 0.45'
    """

    first_epochs: int = 1
    first_trials: int = 4

    def __post_init__(self) -> None:
        _check_whole(self, "first_epochs", "first_trials")

    def why_stop(self, values: list[float], others: list[list[float]], *, direction: str) -> str | None:
        """Compares with the median."""
        done = len(values)
        rivals = [other[done - 1] for other in others if len(other) >= done and math.isfinite(other[done - 1])]
        if done <= self.first_epochs or len(rivals) < self.first_trials:
            return None
        best, median = _best(values, direction), float(np.median(rivals))
        if not _is_worse(best, median, direction):
            return None
        return f"epoch {done - 1}: best value {best:.6g}, the median of {len(rivals)} other trials is {median:.6g}"


@dataclasses.dataclass(frozen=True)
class SuccessiveHalvingPruner(Pruner):
    """Lets one of `factor` trials go on after 1, factor, factor**2, ... times `first_epochs` epochs (ASHA).

    Nobody waits for other trials: each is compared with those that were there before it.

    Args:
        first_epochs: Epochs before the first decision.
        factor: One of so many goes on.

    Example:
        >>> from mirrored_keras.tuning import SuccessiveHalvingPruner
        >>> pruner = SuccessiveHalvingPruner(first_epochs=1, factor=2)
        >>> pruner.why_stop([0.9], [[0.5, 0.4], [0.6]], direction="min")
        'after 1 epochs: rank 3 of 3 trials, and 1 go on'
    """

    first_epochs: int = 1
    factor: int = 3

    def __post_init__(self) -> None:
        _check_whole(self, "first_epochs")
        _check_whole(self, "factor", smallest=2)

    def why_stop(self, values: list[float], others: list[list[float]], *, direction: str) -> str | None:
        """Compares at 1, factor, factor**2, ... times `first_epochs`."""
        done, rung = len(values), self.first_epochs
        while rung < done:
            rung *= self.factor
        if rung != done:
            return None
        rivals = [_best(other[:done], direction) for other in others if len(other) >= done]
        best = _best(values, direction)
        rank = 1 + sum(_is_worse(best, rival, direction) for rival in rivals)
        # fewer than `factor` trials: the best of them goes on
        goes_on = max(1, (len(rivals) + 1) // self.factor)
        if rank <= goes_on:
            return None
        return f"after {done} epochs: rank {rank} of {len(rivals) + 1} trials, and {goes_on} go on"


class PruningCallback(keras.callbacks.Callback):
    """Notes the objective of every epoch in the record of the trial, and stops it when a pruner says so.

    Args:
        pruner: The rule.
        record: Of the trial.
        context: The execution.
        objective: Of the search.
    """

    def __init__(self, pruner: Pruner, record: TrialRecord, context: TrialContext, objective: Any):
        super().__init__()
        self._pruner, self._record, self._objective = pruner, record, objective
        self._key = str(context.execution)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes the value and asks the pruner."""
        if not self._objective.has_value(logs or {}):
            return
        value = float(np.asarray(self._objective.get_value(logs)))
        # an epoch that is trained again after a kill replaces what it noted before
        self._record.content["values"][self._key] = [*self._record.content["values"].get(self._key, [])[:epoch], value]
        values = self._record.content["values"][self._key]
        reason = self._pruner.why_stop(values, self._others(), direction=self._objective.direction)
        if reason is not None:
            self._record.content["reason"] = f"stopped by {type(self._pruner).__name__}, {reason}"
            self.model.stop_training = True
        self._record.save()

    def _others(self):
        # the files, not the oracle: that may be in another process
        own = os.path.basename(self._record.folder)
        project = os.path.dirname(os.path.abspath(self._record.folder))
        found = []
        for entry in sorted(os.listdir(project)):
            path = os.path.join(project, entry, FILE)
            if entry.startswith("trial_") and entry != own and os.path.exists(path):
                record = json_files.read(path)
                if record["outcome"] in (None, "completed", "stopped"):
                    found.append(record["values"].get(self._key, []))
        return [values for values in found if values]

    def get_state(self) -> None:
        """Everything it remembers is in the record."""

    def set_state(self, state: Any) -> None:
        """See `get_state`."""


def _best(values, direction):
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return -math.inf if direction == "max" else math.inf
    return max(finite) if direction == "max" else min(finite)


def _is_worse(value, other, direction):
    return value < other if direction == "max" else value > other


def _check_whole(pruner, *names, smallest=1):
    for name in names:
        value = getattr(pruner, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
            raise TuningError(
                message(
                    f"`{name}` of a pruner is a whole number, {smallest} or more.",
                    f"{name}={value!r}",
                    f"{type(pruner).__name__}({name}={smallest})",
                )
            )
