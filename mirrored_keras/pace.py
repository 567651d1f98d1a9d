"""How many steps one execution runs: `steps_per_execution`, never past the end of an epoch."""

import time
from collections.abc import Callable
from typing import Any

import keras

#: What "auto" aims at: long enough that Python between executions does not show, short enough to interrupt.
SECONDS_PER_EXECUTION = 0.1
_LARGEST_GROWTH = 8


class Pace:
    """Counts the steps of an epoch and says how many the next execution may run.

    With `steps_per_execution="auto"` the number follows from the time of the last execution. Keras still asks
    for one step at a time; while it asks for steps that have run ahead, it gets the last logs.

    Args:
        model: The model; its `steps_per_execution` is read at every execution.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self._left: int | None = None
        self._automatic = False
        self._chosen = 1
        self._executions = 0
        self._ahead = 0
        self.logs: Any = None
        self.done = 0  # in this epoch
        self.total = 0  # in all epochs

    def start(self, steps: int | None, *, automatic: bool = False) -> None:
        """Starts an epoch or an evaluation.

        Args:
            steps: Its number of steps, where that is known.
            automatic: Whether the number of steps per execution may be chosen.
        """
        self._left, self._automatic, self._ahead, self.done = steps, automatic, 0, 0

    @property
    def runs_several(self) -> bool:
        """Whether executions run several steps in one graph."""
        return self._automatic or self._model.steps_per_execution > 1

    def steps(self) -> int:
        """Returns the largest number of steps for the next execution, at least 1."""
        steps = self._chosen if self._automatic else self._model.steps_per_execution
        return steps if self._left is None else max(1, min(steps, self._left))

    def count(self, steps: int) -> None:
        """Notes that steps have run, in this process or in the one that it continues."""
        if self._left is not None:
            self._left -= steps
        self.done += steps
        self.total += steps

    @property
    def is_between_executions(self) -> bool:
        """Whether Keras has asked for every step that has run."""
        return self._ahead <= 0

    def is_ahead(self) -> bool:
        """Returns whether the step that Keras asks for has run already, and counts it."""
        self._ahead -= 1
        return self._ahead >= 0

    def timed(self, run: Callable[[Any, int], tuple[int, Any]], iterator: Any) -> Any:
        """Runs one execution.

        Args:
            run: `SeveralSteps`.
            iterator: A dataset iterator.

        Returns:
            The logs after its last step.

        Raises:
            StopIteration: There was no batch left.
        """
        start = time.perf_counter()
        done, self.logs = run(iterator, self.steps())
        if not done:
            raise StopIteration
        self.count(done)
        self._executions += 1
        if self._automatic:
            self._ahead = done - 1
            if self._executions > 1:  # the first one is traced
                seconds = (time.perf_counter() - start) / done
                self._chosen = max(1, min(int(SECONDS_PER_EXECUTION / seconds), _LARGEST_GROWTH * self._chosen))
        return self.logs


class EpochStart(keras.callbacks.Callback):
    """Tells a model's train function when an epoch starts and how many steps it has.

    Args:
        automatic: Whether `steps_per_execution="auto"` may choose.
    """

    def __init__(self, *, automatic: bool):
        super().__init__()
        self._automatic = automatic

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the count of steps."""
        self.model.train_function.pace.start(self.params.get("steps"), automatic=self._automatic)


def looks_at_batches(callback: keras.callbacks.Callback, phase: str) -> bool:
    """Returns whether a callback acts on single batches, so that steps must not run ahead of it.

    Args:
        callback: Any callback.
        phase: "train" or "test".

    Returns:
        `False` for callbacks without batch methods, for the progress bar and history, and for those of
        Keras' whose options say that they act on epochs.
    """
    callbacks = keras.callbacks
    if isinstance(callback, callbacks.CallbackList):
        return any(looks_at_batches(part, phase) for part in callback.callbacks)
    kind = type(callback)
    if kind in (callbacks.ProgbarLogger, callbacks.History, EpochStart):
        return False
    if kind in (callbacks.ModelCheckpoint, callbacks.BackupAndRestore):
        return phase == "train" and callback.save_freq != "epoch"
    acts_on_batches = getattr(callback, "acts_on_batches", None)  # a callback of ours that knows
    if acts_on_batches is not None:
        return phase == "train" and acts_on_batches
    names = [f"on_{phase}_batch_begin", f"on_{phase}_batch_end"]
    if phase == "train":
        names += ["on_batch_begin", "on_batch_end"]
    base = callbacks.Callback
    return any(getattr(kind, name) is not getattr(base, name) or name in vars(callback) for name in names)
