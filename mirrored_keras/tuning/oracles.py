"""KerasTuner's oracles, whose results can be trusted and whose state survives a kill at any moment."""

import collections
import math
from typing import Any

import keras_tuner
import numpy as np

from mirrored_keras.tuning.private import ContinuedGridOracle, OracleHooks, PenalizingBayesianOracle, SavedWhole
from mirrored_keras.tuning.trial_record import TrialRecord

COMPLETED, INVALID, FAILED, RUNNING = "COMPLETED", "INVALID", "FAILED", "RUNNING"


class HonestResults(OracleHooks):
    """Comes before an oracle of KerasTuner: what failed is never best, never proposed again, and has a reason."""

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Proposes values, which no trial had, unless it continues one."""
        response = super().populate_space(trial_id)
        if response["status"] == "STOPPED" and self.ongoing_trials:
            # all values that are known have been tried, but a trial that runs may declare more
            return {"status": "IDLE", "values": None}
        values = response.get("values")
        if response["status"] != RUNNING or values is None or "tuner/trial_id" in values:
            return response
        if isinstance(self, PenalizingBayesianOracle) and self.was_tried(values):
            values = self.unseen_values()
            return {"status": "STOPPED" if values is None else RUNNING, "values": values}
        return response

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        #: How often each process asked for a trial.
        self.requests: collections.Counter[str] = collections.Counter()
        self._reasons: dict[str, str] = {}

    @keras_tuner.synchronized
    def create_trial(self, tuner_id: str) -> Any:
        """Gives out a trial, without the metrics of an attempt before."""
        self.requests[tuner_id] += 1
        trial = super().create_trial(tuner_id)
        self.is_exhausted = self.is_exhausted or trial.status == "STOPPED"
        if trial.status == RUNNING:
            # KerasTuner would take what an earlier attempt reported for the result
            trial.metrics, trial.score, trial.message = type(trial.metrics)(), None, None
        return trial

    @keras_tuner.synchronized
    def update_trial(self, trial_id: str, metrics: dict[str, Any], step: int = 0) -> Any:
        """Notes metrics, unless the objective is no finite number."""
        value = metrics.get(self.objective.name, 0.0)
        if not math.isfinite(float(value)):
            self._reasons[trial_id] = f"The objective `{self.objective.name}` is {float(value)}."
            return self.trials[trial_id]
        return super().update_trial(trial_id, metrics, step=step)

    @keras_tuner.synchronized
    def end_trial(self, trial: Any) -> None:
        """Ends a trial, with the reason where it failed."""
        reason = self._reasons.pop(trial.trial_id, None)
        if trial.status == COMPLETED and reason is not None:
            trial.status, trial.message = INVALID, reason
        record = TrialRecord(self.trial_folder(trial.trial_id))
        failure = record.content["failure"] or {"kind": "failed", "reason": None}
        has_failed = trial.status in (INVALID, FAILED)
        if has_failed and trial.message is None:  # it does not travel from a worker
            trial.message = failure["reason"]
        self._undo_rounding(trial)
        super().end_trial(trial)
        if has_failed:
            # afterwards: after a kill in between, the trial would take this for an attempt before its own
            record.end(failure["kind"], failure["reason"] or trial.message)

    def _undo_rounding(self, trial):
        # KerasTuner's protocol between processes has single precision
        given = self.trials[trial.trial_id].hyperparameters.values
        for name, value in trial.hyperparameters.values.items():
            if isinstance(value, float) and np.float32(value) == np.float32(given.get(name, np.nan)):
                trial.hyperparameters.values[name] = given[name]

    def consecutive_failures(self) -> list[Any]:
        """Returns the trials that failed since the last one that did not; what did not fit in memory does not count."""
        failed: list[Any] = []
        for trial_id in reversed(self.end_order):
            trial = self.trials[trial_id]
            if trial.status != FAILED:
                break
            if self.outcome_of(trial) != "infeasible":
                failed.insert(0, trial)
        return failed

    def outcome_of(self, trial: Any) -> str:
        """Returns how a trial ended: "completed", "stopped", "failed", "infeasible"; or "running".

        Args:
            trial: Of this search.
        """
        if trial.status not in (COMPLETED, FAILED):
            return "running"
        noted = TrialRecord(self.trial_folder(trial.trial_id)).content["outcome"]
        if trial.status == FAILED:
            return "infeasible" if noted == "infeasible" else "failed"
        return "stopped" if noted == "stopped" else "completed"

    def get_best_trials(self, num_trials: int = 1) -> list[Any]:
        """Returns the best trials, and never one that failed."""
        done = [t for t in list(self.trials.values()) if t.status == COMPLETED and _has_score(t)]
        done.sort(key=lambda trial: trial.score, reverse=self.objective.direction == "max")
        return done[:num_trials]


def _has_score(trial):
    return trial.score is not None and math.isfinite(trial.score)


class Oracle(HonestResults, keras_tuner.Oracle, SavedWhole):
    """The base of your own oracles: `keras_tuner.Oracle` with what this package adds."""


class RandomSearchOracle(HonestResults, keras_tuner.oracles.RandomSearchOracle, SavedWhole):
    """Random values; see `keras_tuner.oracles.RandomSearchOracle`."""


class BayesianOptimizationOracle(HonestResults, PenalizingBayesianOracle, SavedWhole):
    """Bayesian optimization; see `keras_tuner.oracles.BayesianOptimizationOracle`.

    A failed trial counts as the worst score so far, so that the search leaves its neighbourhood; values that were
    tried are replaced by random ones that were not.
    """


class HyperbandOracle(HonestResults, keras_tuner.oracles.HyperbandOracle, SavedWhole):
    """Hyperband; see `keras_tuner.oracles.HyperbandOracle`."""


class GridSearchOracle(HonestResults, ContinuedGridOracle, SavedWhole):
    """Every combination of values; see `keras_tuner.oracles.GridSearchOracle`.

    A search that was stopped goes on at its place in the grid.
    """
