"""One `fit` that writes its state and goes on from one: the last of its callbacks."""

import contextlib
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from mirrored_keras.checkpoint import callback_states, model_states, random_states
from mirrored_keras.checkpoint.agreement import check_agreement, check_steps_per_execution
from mirrored_keras.checkpoint.group_decisions import GroupDecisions
from mirrored_keras.checkpoint.plain_values import decoded, encoded
from mirrored_keras.checkpoint.position import Position
from mirrored_keras.checkpoint.sources import Source
from mirrored_keras.checkpoint.state_files import State, StateFiles
from mirrored_keras.replica import private, startup


class ResumedFit(keras.callbacks.Callback):
    """The last callback of a `fit`: it sees what all others have done when it writes a state, and sets them last.

    Args:
        model: The model that is trained.
        arguments: Of `fit`; callbacks and initial epoch are changed.
        files: The states.
        every_steps: Steps between two states, within an epoch.
        every_minutes: Minutes between two states, within an epoch.
    """

    def __init__(
        self,
        model: Any,
        arguments: dict[str, Any],
        *,
        files: StateFiles,
        every_steps: int | None,
        every_minutes: float | None,
    ):
        super().__init__()
        self._files = files
        self._every_steps, self._every_minutes = every_steps, every_minutes
        self._trained = model
        self._state: State | None = files.newest()
        header = self._state.header if self._state else {}
        self._group = GroupDecisions(model.distribute_strategy)
        self._group.check_same_state(header or None, files.folder)
        self._seed: int = header["seed"] if header else self._group.seed(random_states.new_seed())
        self._epochs = int(arguments.get("epochs", 1))
        self._epoch = 0
        self._source: Source | None = None
        self._position: Position | None = None
        self._logs: Any = None  # of the last step, where a state was written after the last step of an epoch
        self._saved_steps, self._saved_time = 0, time.monotonic()
        self._signal: int | None = None
        self._handlers: dict[int, Any] = {}  # while signals are noted
        others = _as_list(arguments.get("callbacks"))
        if not any(isinstance(callback, keras.callbacks.History) for callback in others):
            others.append(keras.callbacks.History())
        self._callbacks = callback_states.CallbackStates(_with_state(others))
        arguments["callbacks"] = [*others, self]
        if self._state is not None:
            self._begin_at(arguments, header, others)

    def _begin_at(self, arguments, header, others):
        over = header["stopped"] and self._epochs <= header["epochs"]
        arguments["initial_epoch"] = self._epochs if over else header["epoch"]
        self._callbacks.warn_of_missing(header["callbacks"])
        callback_states.continue_files(others, epochs=header["epoch"])

    @contextlib.contextmanager
    def observing(self) -> Iterator[None]:
        """Observes the model's `fit`, which runs inside the block.

        Yields:
            Nothing.
        """
        with private.fit_observed(self._trained, iterator=self._attach, epoch_logs=self._epoch_logs):
            yield

    def _attach(self, epoch_iterator):
        strategy = self._trained.distribute_strategy
        self._source = source = Source(epoch_iterator, strategy=strategy, seed=self._seed)
        self._position = Position(
            epoch_iterator, source=source, steps_run=lambda: self._pace.total, entered=self._entered
        )
        if source.problem:
            warnings.warn(
                f"`Resume` cannot enter an epoch in the middle with {source.problem}: states are written at the end of "
                f"epochs, and a `fit` that goes on draws the next epoch anew.\nWhat to do: {source.fix}",
                stacklevel=2,
            )
        if self._state is None:
            return
        with strategy.scope():
            startup.build(self._trained, private.element_spec_of(epoch_iterator))
        check_agreement(
            self._state, model=model_states.description_of(self._trained), data=source.description, source=source
        )
        check_steps_per_execution(self._state, self._trained.steps_per_execution)

    @property
    def _pace(self):
        return self._trained.make_train_function().pace

    def _epoch_logs(self, logs):
        return self._logs if not logs and self._logs is not None else logs

    # -- going on ----------------------------------------------------------------------------------

    def on_train_begin(self, logs: Any = None) -> None:
        """Sets model and callbacks, after all of them have begun."""
        self._saved_steps = self._pace.total
        if self._state is None:
            return
        header, arrays, _ = self._state
        self._set(metrics=False)
        random_states.set_process(header["random"])
        done = header["step"]
        if self._position is not None:
            executions = -(-done // self._trained.steps_per_execution)
            self._position.resume(header["position"], executions=executions, drawn_in_epoch=done)
        if done:
            self._logs = decoded(header["logs"], arrays)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Sets everything once more where an epoch is entered in the middle, which Keras and callbacks have begun."""
        self._epoch = epoch
        if self._state is None:
            return
        done = self._state.header["step"]
        if done:
            self._pace.count(done)
            self._saved_steps = self._pace.total
            self._set(metrics=True)
        if self._source is not None and self._source.view is not None:
            self._source.view.repeat_epochs(self._state.header["position"]["epochs"])
            self._set_data()

    def _set(self, *, metrics):
        header, arrays, _ = self._state
        groups = model_states.GROUPS if metrics else model_states.GROUPS[:2]
        model_states.set_arrays(self._trained, arrays, groups=groups)
        random_states.set_model(self._trained, header["random"])
        self._callbacks.set(header["callbacks"], arrays)

    def _set_data(self):
        if self._source.view is not None and self._state.header.get("data_state") is not None:
            self._source.view.set_state(decoded(self._state.header["data_state"], self._state.arrays))

    def _entered(self):
        # the data begins its epoch after all callbacks: only now has everything drawn what it draws at a beginning
        if self._state is not None:
            if self._state.header["step"]:
                self._set_data()
            random_states.set_process(self._state.header["random"])
            self._state = None

    # -- writing -----------------------------------------------------------------------------------

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Writes a state where one is due."""
        pace = self._pace
        if not pace.is_between_executions:
            return
        self._logs = None
        due = self._every_steps is not None and pace.total - self._saved_steps >= self._every_steps
        asked = None
        if self._looks_around:
            late = self._every_minutes is not None and time.monotonic() - self._saved_time >= 60 * self._every_minutes
            late, asked = self._group.agree(due=late, signal=self._signal)
            due = due or late
        if (due or asked) and self._source is not None and not self._source.problem:
            self._save(epoch=self._epoch, step=pace.done, logs=logs)
        if asked:
            self._group.part()
            self._deliver(asked)

    @property
    def _looks_around(self):
        return self._every_minutes is not None or bool(self._handlers)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes a state."""
        self._logs = None
        self._save(epoch=epoch + 1, step=0, logs=None)
        if self._looks_around:
            _, asked = self._group.agree(due=False, signal=self._signal, always=True)
            if asked:
                self._group.part()
                self._deliver(asked)

    def _save(self, *, epoch, step, logs):
        arrays: dict[str, np.ndarray] = model_states.read_arrays(self._trained)
        in_epoch = step > 0
        view = self._source.view
        header = {
            "epoch": epoch,
            "step": step,
            "epochs": self._epochs,
            "stopped": bool(self._trained.stop_training),
            "steps_per_execution": self._trained.steps_per_execution,
            "seed": self._seed,
            "model": model_states.description_of(self._trained),
            "data": self._source.description,
            "position": self._position.state(in_epoch=in_epoch),
            "random": random_states.state_of(self._trained),
            "callbacks": self._callbacks.read(arrays),
            "logs": encoded(dict(logs) if logs else None, arrays, "logs"),
            "data_state": encoded(None if view is None else view.state(), arrays, "data"),
        }
        if self._group.writes:
            self._files.write(header, arrays, epoch=epoch, step=step)
        self._saved_steps, self._saved_time = self._pace.total, time.monotonic()

    # -- signals -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def saving_at_signals(self) -> Iterator[None]:
        """Writes a state at SIGTERM and Ctrl-C, after the step that runs, before they have their usual effect.

        Yields:
            Nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may set handlers
            return
        self._handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        self._handlers = {number: handler for number, handler in self._handlers.items() if handler is not None}
        for number in self._handlers:
            signal.signal(number, self._note_signal)
        try:
            yield
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            self._handlers = {}

    def _note_signal(self, number, frame):
        if self._signal is not None:  # a second one does not wait
            self._deliver(number)
        self._signal = number

    def _deliver(self, number):
        self._signal = None
        signal.signal(number, self._handlers[number])
        signal.raise_signal(number)


def _as_list(callbacks):
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    found = []
    for callback in keras.tree.flatten(callbacks or []):
        found += callback.callbacks if isinstance(callback, keras.callbacks.CallbackList) else [callback]
    return found


def _with_state(callbacks):
    stateless = (keras.callbacks.ProgbarLogger,)
    return [c for c in callbacks if not isinstance(c, stateless) and not hasattr(c, "around_fit")]
