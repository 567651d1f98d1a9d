"""What KerasTuner does not keep of a trial: all executions, their seeds, reasons, and whose weights are saved."""

import os
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from mirrored_keras.tuning import json_files

FILE = "record.json"
#: The ends that a trial can have.
OUTCOMES = ("completed", "stopped", "failed", "infeasible")


class TrialRecord:
    """The file `record.json` in the folder of a trial; KerasTuner's own files stay as they are.

    Args:
        folder: Of the trial.
    """

    def __init__(self, folder: str):
        self.folder = folder
        self.content: dict[str, Any] = {
            "outcome": None,
            "reason": None,
            "failure": None,
            "attempt": 0,
            "micro_batches": 1,
            "seeds": {},
            "results": {},
            "values": {},
            "weights": None,
            "lost_workers": 0,
            **json_files.read_or(self.path, {}),
        }

    @property
    def path(self) -> str:
        """The file."""
        return os.path.join(self.folder, FILE)

    def save(self) -> None:
        """Writes the file."""
        json_files.write(self.path, self.content)

    def begin_again(self) -> None:
        """Notes another attempt, after a failure, that keeps nothing of the one before."""
        self.content.update(outcome=None, reason=None, failure=None, results={}, values={}, weights=None, seeds={})
        self.content["attempt"] += 1

    def fail(self, kind: str, reason: str) -> None:
        """Notes a failure of which the oracle has not heard yet.

        Args:
            kind: "failed" or "infeasible".
            reason: Why.
        """
        self.content["failure"] = {"kind": kind, "reason": reason}
        self.save()

    def end(self, outcome: str, reason: str | None = None) -> None:
        """Notes how the trial ended.

        Args:
            outcome: One of `OUTCOMES`.
            reason: Of a failure or stop.
        """
        self.content.update(outcome=outcome, reason=reason)
        self.save()

    def begin_execution(self, execution: int, seed: int) -> None:
        """Notes the seed of an execution.

        Args:
            execution: Its number.
            seed: Its seed.
        """
        self.content["seeds"][str(execution)] = seed
        self.save()

    def result_of(self, execution: int) -> Any:
        """Returns what the `fit` of a finished execution returned, `None` if it is not finished.

        Args:
            execution: Its number.
        """
        stored = self.content["results"].get(str(execution))
        if stored is None:
            return None
        if stored["kind"] != "history":
            return stored["value"]
        history = keras.callbacks.History()
        history.history, history.epoch = stored["value"], stored["epoch"]
        return history

    def finish_execution(self, execution: int, result: Any) -> None:
        """Notes what the `fit` of an execution returned.

        Args:
            execution: Its number.
            result: A history, a dictionary of metrics or a number, or a list of these.
        """
        if isinstance(result, keras.callbacks.History):
            stored = {"kind": "history", "value": _plain(result.history), "epoch": _plain(result.epoch)}
        elif isinstance(result, list):
            return  # of histories: run again after a kill
        else:
            stored = {"kind": "value", "value": _plain(result)}
        self.content["results"][str(execution)] = stored
        self.save()


def _plain(value):
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    return np.asarray(value).tolist()
