"""What `fit` needs on a worker of Ray: an exact resume, and one checkpoint per epoch for Ray."""

import os
import pathlib
import tempfile
from typing import Any

import keras

from mirrored_keras import Resume, save_model
from mirrored_keras.errors import SetupError, message
from mirrored_keras.ray.trainer import FOLDER
from mirrored_keras.workers import is_chief

#: The model in a checkpoint that Ray keeps.
MODEL_FILE = "model.keras"


def ray_callbacks(*, every_steps: int | None = None) -> list[keras.callbacks.Callback]:
    """Returns the callbacks for `fit` on a worker that `ray_trainer` has started.

    The first reports the logs of every epoch to Ray, with the model, saved by the chief once, as `model.keras`
    (`load_model` reads it, with its optimizer). The second is `Resume`, with a folder beside Ray's own files.

    Args:
        every_steps: Steps between two states within an epoch; without it, a lost worker costs the epoch that runs.

    Raises:
        SetupError: The process was not started by `ray_trainer`.
    """
    folder = os.environ.get(FOLDER)
    if folder is None:
        raise SetupError(
            message(
                "`ray_callbacks` are for a function that `ray_trainer` runs.",
                f"{FOLDER} is not set",
                'ray_trainer(train, storage_path="/shared/runs", name="digits").fit()',
            )
        )
    return [_ReportToRay(), Resume(folder, every_steps=every_steps)]


class _ReportToRay(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        import ray.train

        metrics = {"epoch": epoch, **{name: float(value) for name, value in (logs or {}).items()}}
        if not is_chief(self.model.distribute_strategy):
            ray.train.report(metrics)
            return
        with tempfile.TemporaryDirectory() as folder:
            save_model(self.model, pathlib.Path(folder) / MODEL_FILE)
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))

    def get_state(self) -> None:
        return None

    def set_state(self, state: Any) -> None:
        pass
