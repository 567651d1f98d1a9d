"""A killed trial goes on at its last epoch, exactly; a trial of Hyperband goes on from that of another trial."""

import contextlib
import os
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any

from mirrored_keras import Resume
from mirrored_keras.tuning.trial_context import TrialContext

_FOLDER = "states"


class TrialResume(Resume):
    """`Resume` in the folder of an execution; every `fit` that its callbacks see has states of its own.

    Args:
        context: The execution.
    """

    def __init__(self, context: TrialContext):
        super().__init__(os.path.join(context.folder, _FOLDER), keep=1)
        self._base, self._fits = self.folder, 0

    @contextlib.contextmanager
    def around_fit(self, model: Any, arguments: dict[str, Any]) -> Iterator[None]:
        """Surrounds a `fit`; the second one of a `HyperModel.fit` does not go on from the first."""
        self.folder = os.path.join(self._base, f"fit{self._fits}")
        self._fits += 1
        with super().around_fit(model, arguments):
            yield

    def on_train_begin(self, logs: Any = None) -> None:
        """Does nothing: a plain model, which an own `HyperModel.fit` may train beside, has no states."""


def has_states(trial_folder: str, execution: int) -> bool:
    """Returns whether there is a state of an execution.

    Args:
        trial_folder: Of the trial.
        execution: Its number.
    """
    folder = pathlib.Path(trial_folder, f"execution{execution}", _FOLDER)
    return any(folder.glob("*/state-*.h5"))


def continue_from(past_folder: str, folder: str, execution: int) -> bool:
    """Gives an execution the last state of the same execution of another trial, unless it has one of its own.

    Args:
        past_folder: Of the trial that is continued.
        folder: Of the trial that continues it.
        execution: Number of the execution.

    Returns:
        Whether there is a state to go on from.
    """
    if has_states(folder, execution):
        return True
    if not has_states(past_folder, execution):
        return False
    source = pathlib.Path(past_folder, f"execution{execution}", _FOLDER)
    target = pathlib.Path(folder, f"execution{execution}", _FOLDER)
    # whole or not at all: a kill in the middle leaves another name
    unfinished = target.with_name(_FOLDER + ".copying")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, unfinished)
    os.replace(unfinished, target)
    return True


def remove_states(trial_folder: str) -> None:
    """Removes the states of all executions of a trial.

    Args:
        trial_folder: Of the trial.
    """
    for entry in list(os.scandir(trial_folder)):
        if re.fullmatch(r"execution\d+", entry.name):
            shutil.rmtree(os.path.join(entry.path, _FOLDER), ignore_errors=True)
            with contextlib.suppress(OSError):
                os.rmdir(entry.path)  # unless the user's files are in it
