"""The results of a search: summary, table, TensorBoard log, picture."""

import csv
import json
import os
import pathlib
from typing import Any

from mirrored_keras.checkpoint.atomic import written_atomically
from mirrored_keras.errors import TuningError, message
from mirrored_keras.tuning.outcomes import objective_names
from mirrored_keras.tuning.private import MixedWithTuner
from mirrored_keras.tuning.trial_record import OUTCOMES, TrialRecord


class Results(MixedWithTuner):
    """What a tuner says about its trials."""

    def results(self) -> list[dict[str, Any]]:
        """Returns a row for each trial, in the order they began.

        Columns are `trial_id`, `outcome` ("completed", "stopped", "failed", "infeasible" or "running"), `score`,
        `best_epoch`, `reason`, `seeds` and `scores` of the executions, `weights_of` (the execution whose weights are
        saved), `micro_batches`, and `hp.NAME` for each hyperparameter.
        """
        trials = [self.oracle.trials[trial_id] for trial_id in self.oracle.start_order]
        return [self._row(trial) for trial in trials]

    def _row(self, trial):
        record = TrialRecord(self.oracle.trial_folder(trial.trial_id)).content
        weights = record["weights"]
        reason = record["reason"] or trial.message
        return {
            "trial_id": trial.trial_id,
            "outcome": self.oracle.outcome_of(trial),
            "score": trial.score if trial.status == "COMPLETED" else None,
            "best_epoch": trial.best_step if trial.status == "COMPLETED" else None,
            "reason": reason,
            "seeds": list(record["seeds"].values()),
            "scores": [self._score_of(result) for result in record["results"].values()],
            "weights_of": None if weights is None else weights["execution"],
            "micro_batches": record["micro_batches"],
            **{f"hp.{name}": value for name, value in trial.hyperparameters.values.items()},
        }

    def _score_of(self, result):
        name = self.oracle.objective.name
        if not isinstance(result["value"], dict):
            return result["value"]
        if name not in result["value"] and len(objective_names(self.oracle.objective)) > 1:
            return None
        values = result["value"][name]
        if result["kind"] != "history":
            return values
        finite = [value for value in values if abs(value) < float("inf")]
        return (max if self.oracle.objective.direction == "max" else min)(finite, default=None)

    def outcomes(self) -> dict[str, int]:
        """Returns how many trials ended in each way."""
        found = [self.oracle.outcome_of(trial) for trial in self.oracle.trials.values()]
        return {outcome: found.count(outcome) for outcome in (*OUTCOMES, "running")}

    def results_summary(self, num_trials: int = 10) -> None:
        """Prints how many trials ended in each way, why trials failed or were stopped, and the best trials.

        Args:
            num_trials: How many of the best.
        """
        print("Trials:", ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes().items() if count))
        for row in self.results():
            if row["outcome"] in ("failed", "infeasible", "stopped"):
                last = (row["reason"] or "no reason").strip().splitlines()[-1]
                print(f"Trial {row['trial_id']} {row['outcome']}: {last}")
        super().results_summary(num_trials)

    def save_results(self, path: str | os.PathLike[str]) -> None:
        """Writes the table of `results`.

        Args:
            path: A `.csv` or `.json` file.

        Raises:
            TuningError: Another ending.
        """
        rows = self.results()
        if not os.fspath(path).endswith((".csv", ".json")):
            raise TuningError(
                message(
                    "A table of results is a .csv or a .json file.",
                    f"path={os.fspath(path)!r}",
                    'tuner.save_results("results.csv")',
                )
            )
        with written_atomically(path) as temporary:
            if os.fspath(path).endswith(".json"):
                pathlib.Path(temporary).write_text(json.dumps(rows, indent=1), encoding="utf-8")
                return
            names = list(dict.fromkeys(name for row in rows for name in row))
            with open(temporary, "w", newline="", encoding="utf-8") as file:
                table = csv.DictWriter(file, names)
                table.writeheader()
                table.writerows(rows)

    def log_hparams(self, folder: str) -> None:
        """Writes hyperparameters and scores of all trials that have ended for TensorBoard's HParams page.

        Args:
            folder: For `tensorboard --logdir`.
        """
        from mirrored_keras.tuning.hparams import write_hparams

        rows = [row for row in self.results() if row["outcome"] != "running"]
        trials = [self.oracle.trials[row["trial_id"]] for row in rows]
        write_hparams(rows, trials, objective=self.oracle.objective.name, folder=folder)

    def plot_results(self, path: str | os.PathLike[str], *, kind: str = "scores") -> None:
        """Draws the trials as a picture; needs matplotlib: `pip install "mirrored-keras[plot]"`.

        Args:
            path: Of the picture: `.png`, `.svg` or `.pdf`.
            kind: "scores" over trials, or "parallel" coordinates: a line per trial through its hyperparameters.

        Raises:
            SetupError: matplotlib is not installed.
            TuningError: `kind` is another word.
        """
        from mirrored_keras.tuning.plots import draw

        objective = self.oracle.objective
        draw(self.results(), path, kind=kind, objective=objective.name, direction=objective.direction)
