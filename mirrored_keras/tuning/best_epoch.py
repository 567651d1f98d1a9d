"""Saves the weights of the best epoch of a trial, and notes which epoch of which execution that is."""

import math
import os
from typing import Any

import keras
import numpy as np

from mirrored_keras import save_weights
from mirrored_keras.tuning.trial_context import TrialContext
from mirrored_keras.tuning.trial_record import TrialRecord

FILE = "checkpoint.weights.h5"  # KerasTuner's own name


class BestEpoch(keras.callbacks.Callback):
    """Saves weights and optimizer whenever the objective improves, over all executions of a trial.

    Args:
        objective: Of the search.
        record: Of the trial.
        context: The execution.
    """

    def __init__(self, objective: Any, record: TrialRecord, context: TrialContext):
        super().__init__()
        self._objective, self._record, self._context = objective, record, context

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves where the objective is better, or not in the logs."""
        logs = logs or {}
        value = None
        if self._objective.has_value(logs):
            value = float(np.asarray(self._objective.get_value(logs)))
            if not math.isfinite(value):
                return
            # what `Resume` restores is the file of the record: both are of the moment of the last state
            best = self._record.content["weights"]
            if best is not None and not self._is_better(value, epoch, best):
                return
        save_weights(self.model, os.path.join(self._record.folder, FILE))
        self._record.content["weights"] = {"execution": self._context.execution, "epoch": epoch, "value": value}
        self._record.save()

    def _is_better(self, value, epoch, best):
        if best["value"] is None:
            return True
        if (best["execution"], best["epoch"]) == (self._context.execution, epoch):
            return True  # trained again after a kill: the file may be older than the record
        return self._objective.better_than(value, best["value"])

    def get_state(self) -> None:
        """Everything it remembers is in the record."""

    def set_state(self, state: Any) -> None:
        """See `get_state`."""
