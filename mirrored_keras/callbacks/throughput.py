"""Examples per second, the share of time that waits for input, and the efficiency of several replicas."""

import threading
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.callbacks.recording import RecordingCallback
from mirrored_keras.errors import SetupError, message

_SECONDS_BETWEEN_READS = 0.5  # for the progress bar; at the end of an epoch everything is read


class Throughput(RecordingCallback):
    """Puts the speed of training into the progress bar, the logs, History and TensorBoard.

    Logged are, for every epoch, without validation and without the first execution, which is traced:

    * `examples_per_second`: rows of all replicas, over the time between executions;
    * `examples_per_second_per_replica`: the same, divided by the number of replicas R;
    * `input_wait_share`: the part of that time in which a step could have run, had its batch been there. Measured in
      the graph, on the host: where a GPU still works on earlier steps meanwhile, less is lost;
    * `scaling_efficiency`, with a baseline: examples per second / (R * baseline).

    Nothing waits for the numbers, and steps may run ahead in one graph. Give it before `TensorBoard` and other
    callbacks that read the logs. An epoch of a single execution is timed with its tracing.

    Args:
        baseline: Examples per second of one replica, for example from `one_replica_rate`.

    Raises:
        SetupError: `baseline` is no positive number; from `fit`, when the model is no `DistributedModel`.

    Example:
        >>> import keras, numpy as np
        >>> from mirrored_keras import DistributedModel
        >>> from mirrored_keras.callbacks import Throughput
        >>> inputs = keras.Input((4,))
        >>> model = DistributedModel(inputs, keras.layers.Dense(1)(inputs))
        >>> model.compile("sgd", "mse")
        >>> history = model.fit(np.ones((10, 4)), np.ones((10, 1)), batch_size=4, verbose=0, callbacks=[Throughput()])
        >>> history.history["examples_per_second"][0] > 0
        True
    """

    def __init__(self, *, baseline: float | None = None):
        super().__init__()
        if baseline is not None and not (isinstance(baseline, (int, float)) and baseline > 0):
            raise SetupError(
                message(
                    "A baseline is a positive number: examples per second of one replica.",
                    f"baseline={baseline!r}",
                    "Throughput(baseline=one_replica_rate(build_model, dataset))",
                )
            )
        self.baseline = baseline
        self._counting = threading.Lock()  # Keras may report batches from threads of its own, in any order
        self._traced: tuple[int, float, float] | None = None
        self._is_traced = False
        self._begin = self._end = self._last_read = self._waited = 0.0
        self._rows: list[int] = []  # of the steps that are timed
        self._numbers: dict[str, float] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts anew."""
        super().on_train_begin(logs)
        self._is_traced = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the clock."""
        self._traced = None
        self._start(time.perf_counter())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stops the clock, for the time being."""
        now = time.perf_counter()
        with self._counting:
            if not self._is_traced:
                self._leave_out(batch + 1, now)
            elif now > self._end:
                self._end = now
                if now - self._last_read > _SECONDS_BETWEEN_READS:
                    self._update(now)
            if logs is not None:
                logs.update(self._numbers)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the numbers of the epoch to its logs."""
        self._update(self._end)
        if self._seconds <= 0 and self._traced is not None:
            self._numbers = self._described(*self._traced)
        if logs is not None:
            logs.update(self._numbers)

    def _start(self, now: float) -> None:
        self._begin = self._end = self._last_read = now
        self._rows, self._waited, self._numbers = [], 0.0, {}

    @property
    def _seconds(self):
        return self._end - self._begin

    def _leave_out(self, steps, now):
        """Starts the clock again after the first execution; what it noted counts if there is nothing else."""
        self._is_traced = True
        self._read()
        # steps that have run since then are not among them
        self._traced = sum(self._rows[:steps]), self._waited, now - self._begin
        later = self._rows[steps:]
        self._start(now)
        self._rows = later

    def _read(self):
        self._rows += [sum(record.rows) for record in self._records.read_steps()]
        self._waited += sum(self._records.read_waits())

    def _update(self, now):
        self._last_read = now
        self._read()
        if self._seconds > 0 and self._rows:
            self._numbers = self._described(sum(self._rows), self._waited, self._seconds)

    def _described(self, rows, waited, seconds):
        replicas = self.model.distribute_strategy.num_replicas_in_sync
        rate = rows / seconds
        numbers = {
            "examples_per_second": rate,
            "examples_per_second_per_replica": rate / replicas,
            "input_wait_share": min(waited / seconds, 1.0),
        }
        if self.baseline is not None:
            numbers["scaling_efficiency"] = rate / (replicas * self.baseline)
        return numbers


def one_replica_rate(build: Callable[[], keras.Model], dataset: tf.data.Dataset, *, steps: int = 50) -> float:
    """Trains a new model on one device and returns its examples per second: the baseline of `Throughput`.

    Call it outside any scope. Give batches of the rows that one replica has, G / R: with other batches the number
    says something else.

    Args:
        build: Makes a compiled `DistributedModel`; it is called without a strategy.
        dataset: Batches for one replica; repeated as needed.
        steps: Steps that are timed, after as many that are not.

    Returns:
        Examples per second.

    Raises:
        SetupError: A strategy's scope is open.

    Example:
        >>> import keras, tensorflow as tf
        >>> from mirrored_keras import DistributedModel
        >>> from mirrored_keras.callbacks import one_replica_rate
        >>> def build():
        ...     inputs = keras.Input((4,))
        ...     model = DistributedModel(inputs, keras.layers.Dense(1)(inputs))
        ...     model.compile("sgd", "mse")
        ...     return model
        >>> batches = tf.data.Dataset.from_tensors((tf.ones((8, 4)), tf.ones((8, 1))))
        >>> one_replica_rate(build, batches, steps=5) > 0
        True
    """
    if tf.distribute.has_strategy():
        raise SetupError(
            message(
                "The baseline of one replica is measured without a strategy.",
                "called inside strategy.scope()",
                "baseline = one_replica_rate(build_model, dataset)   # before `with strategy.scope():`",
            )
        )
    model, clock = build(), Throughput()
    history = model.fit(
        dataset.repeat(), epochs=2, steps_per_epoch=max(steps, 2), verbose=0, shuffle=False, callbacks=[clock]
    )
    return float(history.history["examples_per_second"][-1])
