"""Removes what a search does not need any more: states of trials that ended, and checkpoints of all but the best."""

import contextlib
import os
from typing import Any

from mirrored_keras.tuning import private, trial_resume
from mirrored_keras.tuning.best_epoch import FILE


def clean(tuner: Any) -> None:
    """Removes files of trials that have ended.

    What Hyperband may still continue, keeps both.

    Args:
        tuner: With the oracle in this process.
    """
    oracle = tuner.oracle
    needed = private.trials_to_continue(oracle)
    # also the trials that running and waiting ones begin from
    open_trials = [trial for trial in oracle.trials.values() if trial.trial_id not in oracle.end_order]
    needed |= {trial.hyperparameters.values.get("tuner/trial_id") for trial in open_trials}
    best = None
    if tuner.keep_checkpoints is not None:
        best = {trial.trial_id for trial in oracle.get_best_trials(tuner.keep_checkpoints)}
    for trial_id in oracle.end_order:
        if trial_id in needed:
            continue
        folder = oracle.trial_folder(trial_id)
        trial_resume.remove_states(folder)
        if best is not None and trial_id not in best:
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(folder, FILE))
