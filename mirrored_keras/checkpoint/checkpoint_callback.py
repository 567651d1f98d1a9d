"""`Checkpoint`: files of the model while it trains, saved and kept by rules."""

import os
import pathlib
import time
import warnings
from typing import Any

import keras
import numpy as np

from mirrored_keras.checkpoint import checkpoint_files
from mirrored_keras.checkpoint.checkpoint_content import write
from mirrored_keras.checkpoint.policies import Retention, Saved, Saving, Since, every_epochs, latest
from mirrored_keras.errors import CheckpointError, SetupError, message
from mirrored_keras.replica import workers


class Checkpoint(keras.callbacks.Callback):
    """Saves the model with its optimizer while it trains: when one policy says, keeping what another says.

    Every file is written at once and ends with a checksum; it is there whole or not at all. Names carry epoch, step
    and the monitored numbers, so that the list of checkpoints is that of the files, with no other file to lose. Files
    are those of one replica, whatever the number of replicas. What is restored is checked first; a damaged file is
    passed over with a warning, and a model of another architecture is refused and stays as it is.

    To go on with a killed `fit`, data and callbacks included, use `Resume`; both may be given.

    Args:
        folder: Of this training, and no other.
        save: When to save: `policies.every_epochs(1)` if `None`.
        keep: What to keep: `policies.latest(3)` if `None`.
        format: ".keras" (whole model), ".weights.h5" (weights and optimizer), ".h5" (legacy whole model) or "tf"
            (`tf.train.Checkpoint` of model and optimizer, one folder each).

    Raises:
        SetupError: An argument is none of these.
        CheckpointError: From `fit`: the folder has checkpoints of later epochs than the one that begins.

    Example:
        >>> import keras, numpy as np, tempfile
        >>> from mirrored_keras import Checkpoint, DistributedModel, policies
        >>> inputs = keras.Input((4,))
        >>> model = DistributedModel(inputs, keras.layers.Dense(1)(inputs))
        >>> model.compile("adam", "mse")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoint = Checkpoint(folder, keep=policies.latest(1) | policies.best(1, "loss"))
        ...     history = model.fit(np.ones((8, 4)), np.ones((8, 1)), epochs=3, verbose=0, callbacks=[checkpoint])
        ...     [saved.epoch for saved in checkpoint.saved()], checkpoint.restore_latest(model).epoch
        ([3], 3)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        save: Saving | None = None,
        keep: Retention | None = None,
        format: str = ".keras",
    ):
        super().__init__()
        if format not in checkpoint_files.FORMATS:
            raise SetupError(
                message(
                    f"`format` is one of {checkpoint_files.FORMATS}.",
                    f"format={format!r}",
                    'Checkpoint("run1", format=".keras")',
                )
            )
        self._save = every_epochs(1) if save is None else save
        self._keep = latest(3) if keep is None else keep
        if not isinstance(self._save, Saving) or not isinstance(self._keep, Retention):
            raise SetupError(
                message(
                    "`save` and `keep` are policies, which a bar joins.",
                    f"save={save!r}, keep={keep!r}",
                    "Checkpoint(folder, save=policies.every_steps(100), keep=policies.latest(3))",
                )
            )
        self.folder, self._format = pathlib.Path(folder), format
        self._steps_since = self._epochs_since = self._step = 0
        self._epoch: int | None = None
        self._time = time.monotonic()

    @property
    def acts_on_batches(self) -> bool:
        """Whether steps must not run ahead of this callback."""
        return self._save.within_epochs

    def saved(self) -> list[Saved]:
        """Returns the checkpoints in the folder, the oldest first."""
        return checkpoint_files.saved_in(self.folder, self._format)

    def restore_latest(self, model: keras.Model) -> Saved:
        """Restores the newest checkpoint that is not damaged.

        Args:
            model: A built and compiled model, on any number of replicas.

        Returns:
            What was restored.

        Raises:
            CheckpointError: There is none, or it is of another model, which stays as it is.
        """
        return checkpoint_files.first_readable(model, self.saved()[::-1], os.fspath(self.folder))

    def restore_best(self, model: keras.Model) -> Saved:
        """Restores the best checkpoint that is not damaged, by the first `policies.best` in `keep`.

        Args:
            model: A built and compiled model, on any number of replicas.

        Returns:
            What was restored.

        Raises:
            SetupError: `keep` has no `policies.best`.
            CheckpointError: There is none, or it is of another model, which stays as it is.
        """
        if self._keep.best_first is None:
            raise SetupError(
                message(
                    "The best checkpoint is that of the first `policies.best` in `keep`.",
                    "keep without it",
                    'Checkpoint(folder, keep=policies.latest(2) | policies.best(1, "val_loss"))',
                )
            )
        return checkpoint_files.first_readable(model, self._keep.best_first(self.saved()), os.fspath(self.folder))

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts the count."""
        self._epoch, self._time = None, time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Refuses, once, to mix two trainings in one folder."""
        if self._epoch is None:
            later = [saved for saved in self.saved() if (saved.epoch, saved.step) > (epoch + 1, 0)]
            if later:
                raise CheckpointError(
                    message(
                        "A folder of checkpoints belongs to one training: it has some of later epochs than this one.",
                        f"folder={os.fspath(self.folder)!r}, newest={os.path.basename(later[-1].path)!r}, "
                        f"epoch={epoch}",
                        "saved = checkpoint.restore_latest(model); fit(initial_epoch=saved.epoch); or another folder",
                    )
                )
        self._epoch, self._step = epoch, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Saves where it is due."""
        self._steps_since += batch + 1 - self._step
        self._step = batch + 1
        if self._save.within_epochs:
            self._write_if_due(self._epoch, self._step, logs, epoch_ends=False)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves where it is due."""
        self._epochs_since += 1
        self._write_if_due(epoch + 1, 0, logs, epoch_ends=True)

    def _write_if_due(self, epoch, step, logs, *, epoch_ends):
        seconds = time.monotonic() - self._time
        if not self._save.is_due(Since(self._steps_since, self._epochs_since, seconds, epoch_ends)):
            return
        metrics = self._monitored(logs or {}, epoch_ends=epoch_ends)
        if not workers.is_chief(self.model.distribute_strategy):
            self._steps_since = self._epochs_since = 0
            return
        name = checkpoint_files.name_of(epoch=epoch, step=step, metrics=metrics, form=self._format)
        written = os.fspath(self.folder / name)
        write(self.model, pathlib.Path(written))
        self._steps_since = self._epochs_since = 0
        self._time = time.monotonic()
        self._remove_others(written, (epoch, step))

    def _monitored(self, logs, *, epoch_ends):
        missing = [name for name in self._keep.monitors if name not in logs]
        if missing and epoch_ends:
            warnings.warn(
                f"`policies.best` looks for {missing} in the logs, which have {sorted(logs)}: this checkpoint is not "
                "among the best.\nWhat to do: a name of the logs, or validation data for those that begin with `val_`.",
                stacklevel=2,
            )
        return {name: float(np.asarray(logs[name])) for name in self._keep.monitors if name in logs}

    def _remove_others(self, written, position):
        saved = [one for one in self.saved() if one.path == written or (one.epoch, one.step) != position]
        stay = [one.path for one in self._keep.kept(saved)]
        for one in self.saved():
            if one.path != written and one.path not in stay:
                checkpoint_files.remove(one)
