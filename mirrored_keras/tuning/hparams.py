"""The HParams page of TensorBoard: one run for each execution of a trial."""

import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras.tuning import private
from mirrored_keras.tuning.trial_context import TrialContext


def hparams_callbacks(callbacks: list[keras.callbacks.Callback], context: TrialContext) -> list[Any]:
    """Returns a callback that logs the hyperparameters beside each `TensorBoard` callback, as KerasTuner does.

    Args:
        callbacks: Of the execution.
        context: The execution.
    """
    boards = [callback for callback in callbacks if isinstance(callback, keras.callbacks.TensorBoard)]
    if not boards:
        return []
    from tensorboard.plugins.hparams import api

    values = private.tensorboard_hyperparameters(context.hyperparameters)
    return [api.KerasCallback(writer=b.log_dir, hparams=values, trial_id=context.trial_id) for b in boards]


def write_hparams(rows: list[dict[str, Any]], trials: list[Any], *, objective: str, folder: str) -> None:
    """Writes hyperparameters and results of trials that have ended, for TensorBoard's HParams page.

    Args:
        rows: Of the results table, for the same trials.
        trials: Of KerasTuner.
        objective: Name of the objective.
        folder: For `tensorboard --logdir`; each trial gets a folder in it.
    """
    from tensorboard.plugins.hparams import api

    for row, trial in zip(rows, trials, strict=True):
        writer = tf.summary.create_file_writer(os.path.join(folder, trial.trial_id))
        with writer.as_default():
            api.hparams(private.tensorboard_hyperparameters(trial.hyperparameters), trial_id=trial.trial_id)
            if row["score"] is not None:
                tf.summary.scalar(objective, np.float32(row["score"]), step=int(row["best_epoch"] or 0))
        writer.close()
