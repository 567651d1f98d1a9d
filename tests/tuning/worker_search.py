"""A search with worker processes, as a script.

python tests/tuning/worker_search.py FOLDER KIND
"""

import json
import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

folder, kind = pathlib.Path(sys.argv[1]), sys.argv[2]
from mirrored_keras import tuning


def wait_for(found):
    until = time.monotonic() + 400
    while not found() and time.monotonic() < until:
        time.sleep(0.05)


class Worked(tuning.Tuner):
    """Trains nothing, so that a worker is up in the time of an import."""

    def run_trial(self, trial, *args, **kwargs):
        hp = trial.hyperparameters
        x = hp.Float("x", 0.0, 1.0, step=0.1)
        marks = folder / "marks"
        marks.mkdir(exist_ok=True)
        mark = marks / f"{trial.trial_id}-{os.environ['KERASTUNER_TUNER_ID']}-{os.getpid()}"
        mark.write_text(os.environ["MIRRORED_KERAS_WORKER"], encoding="utf-8")
        if kind == "killed":
            if trial.trial_id == "0":  # leaves trial 1 to the other worker
                wait_for(lambda: list(marks.glob("1-*")))
            if trial.trial_id == "1" and len(list(marks.glob("1-*"))) == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if trial.trial_id == "2":
                raise ValueError("this reason travels")
        if kind == "chief_killed":
            time.sleep(600)
        return x


space = tuning.HyperParameters()
space.Float("x", 0.0, 1.0, step=0.1)
oracle = tuning.oracles.RandomSearchOracle(
    max_trials=2 if kind == "process_per_trial" else 4, seed=3, hyperparameters=space
)
workers = {"process_per_trial": None, "killed": [[0], [1]]}.get(kind, [[0]])
tuner = Worked(oracle, directory=folder, workers=workers, process_per_trial=kind == "process_per_trial")
print("reaches search")
tuner.search(verbose=0)
# never in a worker
(folder / "rows.json").write_text(json.dumps(tuner.results()), encoding="utf-8")
