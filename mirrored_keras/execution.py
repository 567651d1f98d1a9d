"""Runs a step on every replica and reads its logs once: the functions behind fit and evaluate."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras import activity_losses, layer_states, randomness
from mirrored_keras.batch_norm import sound_statistics
from mirrored_keras.global_batch import GlobalBatch
from mirrored_keras.logs import StepLogs, has_own_metrics, states_of_own_rows
from mirrored_keras.pace import Pace
from mirrored_keras.replica import collective, feeding, private, splitting, stand_in
from mirrored_keras.replica.rows import check_alike, difference_named, first_leaf, rows_of
from mirrored_keras.replica.watchdog import watched
from mirrored_keras.several_steps import SeveralSteps
from mirrored_keras.step_records import StepRecords, noting


class StepRunner:
    """Turns a step on one replica's data into a function of an iterator over global batches.

    Three things differ from the function that Keras makes:

    * a step starts only when its batch has really been drawn, so that the end of a dataset of unknown
      length runs no optimizer step without data;
    * the values of metrics are summed over the replicas and read once, so that the logs of every
      single batch are those of one replica;
    * a value that a step returns by itself is averaged over the rows of the global batch (or reduced
      as the model's `distribute_reduction_method` says), leaving out replicas without rows.

    Args:
        model: The model; read for its strategy, metrics and flags.
        step: Takes one replica's data; returns a dict of logs, or any structure of tensors.
        own_step: Whether `step` is a user's.
        around: Makes a context manager to hold while the replicas run.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        step: Callable[[Any], Any],
        own_step: bool = False,
        around: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
    ):
        self.logs_with_own_loss: Any = None  # the last logs, where their `loss` is the step's and no metric's
        self.map_data = None  # (*data) -> data, on a replica, for what a dataset can no longer map
        self._model = model
        self._step = step
        self._around = around
        self._logs = StepLogs(model, reads_metrics=not own_step)
        self.pace = Pace(model)
        self._has_own_values = own_step or has_own_metrics(model)
        self._records: list[StepRecords] = []
        self.trace_again()

    def trace_again(self) -> None:
        """Forgets all traces: TensorFlow would make those for tensors of other ranks forget the rank."""
        self._on_data, self._on_iterator = self._functions()
        self._several = SeveralSteps(
            self._model.distribute_strategy,
            step=self.own_values,
            logs=self._logs.of_all_replicas,
            single=lambda data: self._on_data(data, feeding.go_with(data)),
            has_own_values=self._has_own_values,
            records=self._records,
        )

    def start_records(self) -> StepRecords:
        """Lets steps note, from now on, how many rows they had, what their losses were divided by and the like.

        They are traced anew, with the notes in them.

        Returns:
            The notes, to be read at any time.
        """
        records = StepRecords(self._model)
        self._records.append(records)
        self.trace_again()
        return records

    def stop_records(self, records: StepRecords) -> None:
        """Lets steps run without such notes again.

        Args:
            records: From `start_records`.
        """
        self._records.remove(records)
        self.trace_again()

    def __call__(self, iterator: Any) -> Any:
        """Runs `steps_per_execution` steps and returns the logs after the last of them.

        Args:
            iterator: A dataset iterator, or any Python iterator over distributed batches.

        Returns:
            The step's logs.

        Raises:
            StopIteration: There was no batch left.
        """
        with difference_named(), watched(self._model.distribute_strategy, "a step of training or evaluation"):
            result = self._run(iterator)
        self.logs_with_own_loss = result if self._logs.has_own_loss else None
        return result

    def _run(self, iterator):
        of_dataset = isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator))
        if of_dataset and self.pace.is_ahead():
            return self.pace.logs
        if of_dataset and self.pace.runs_several and self._several.is_ready and not self._model.run_eagerly:
            return self.pace.timed(self._several, iterator)
        return self._one_by_one(iterator, self._on_iterator if of_dataset else self._on_next)

    def _one_by_one(self, iterator, run):
        result: Any = None
        for done in range(self.pace.steps()):
            try:
                result = run(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                if not done:
                    raise StopIteration from None
                break
            self.pace.count(1)
        return result

    def _functions(self):
        model = self._model

        @tf.autograph.experimental.do_not_convert
        def on_data(data, go):
            sparse_sums = collective.sparse_sums()
            own = self.own_values(data, go)
            self._several.learn(own, has_sparse_gradients=collective.sparse_sums() > sparse_sums)
            return self._logs.of_all_replicas(own)

        if not model.run_eagerly:
            on_data = tf.function(on_data, reduce_retracing=True, jit_compile=model.jit_compile)

        @tf.autograph.experimental.do_not_convert
        def on_iterator(iterator):
            start = [records.now() for records in self._records]
            with tf.control_dependencies(start):
                data = feeding.none_for_missing(iterator.get_next())
            go = feeding.go_with(data)
            for records, before in zip(self._records, start, strict=True):
                records.note_wait(before, go)
            return on_data(data, go)

        if not model.run_eagerly:
            on_iterator = tf.function(on_iterator, reduce_retracing=True)
        return on_data, on_iterator

    def _on_next(self, iterator):
        data = feeding.none_for_missing(next(iterator))
        return self._on_data(splitting.split_batch(self._model.distribute_strategy, data), tf.constant(0))

    def own_values(self, data: Any, go: tf.Tensor, *, have_rows: bool = False) -> list[Any]:
        """Runs one step on all replicas.

        Args:
            data: One global batch, split over the replicas.
            go: A number that is there once the batch is.
            have_rows: Whether it is known that every replica has rows, so that nothing must stand in for none.

        Returns:
            What the step returned by itself and no metric keeps, reduced over the replicas.
        """
        model = self._model
        strategy = model.distribute_strategy
        if strategy.num_replicas_in_sync == 1:
            data = data if self.map_data is None else self.map_data(*data)
            with self._around(), activity_losses.counted_once_per_row(model):
                outputs, rows, notes = strategy.run(_after(self._on_one_replica), args=(go, data))
            self._record([rows], notes)
            return self._logs.own_values(outputs, None)
        if not have_rows:
            go = check_alike(strategy, data, go)
        rows_of_replicas = local_rows(strategy, data)
        fill = not have_rows and stand_in.applies_to(model, data)
        row_shapes = stand_in.row_shapes(strategy, data) if fill else []

        def on_replica(data):
            rows = rows_of(first_leaf(data))
            data = feeding.in_own_memory(stand_in.filled(data, rows, row_shapes) if fill else data)
            data = data if self.map_data is None else self.map_data(*data)
            x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
            metrics = [] if have_rows else states_of_own_rows(model)
            before = stand_in.states_of(metrics)
            batch = batch_of(x, rows, model, rows_of_replicas, has_rows=have_rows or None)
            with layer_states.kept_alike(model, rows), batch, randomness.on_replica(model, batch, x):
                outputs, notes = self._noting(data)
            stand_in.restored(metrics, before, rows)
            return outputs, tf.convert_to_tensor(rows), notes

        everywhere = (activity_losses.counted_once_per_row, sound_statistics, randomness.on_all_replicas)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._around())
            for context in everywhere:
                stack.enter_context(context(model))
            outputs, rows, notes = strategy.run(_after(on_replica), args=(go, data))
        if self._records:  # what was noted is the same on every replica
            notes = {name: strategy.experimental_local_results(value)[0] for name, value in notes.items()}
            self._record(strategy.experimental_local_results(rows), notes)
        return self._logs.own_values(outputs, rows)

    def _on_one_replica(self, data):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        with GlobalBatch.of_step(x, model=self._model) as batch, randomness.on_replica(self._model, batch, x):
            outputs, notes = self._noting(data)
            return outputs, rows_of(first_leaf(x)), notes

    def _noting(self, data):
        if not self._records:
            return self._noting_own_loss(data), {}
        with noting() as notes:
            return self._noting_own_loss(data), notes

    def _record(self, rows, notes):
        for records in self._records:
            records.note_step(rows, notes)

    def _noting_own_loss(self, data):
        tracker = private.loss_tracker(self._model)
        tracker.was_updated = False
        outputs = self._step(data)
        by_others = any(m is not tracker and m.name == "loss" for m in self._model.metrics)
        self._logs.has_own_loss = isinstance(outputs, dict) and not tracker.was_updated and not by_others
        return outputs


def _after(step):
    # A step may have parts that need no data (counters, seeds); none of them may run before the batch of
    # every replica is there. The edge is made inside the step: one on the call would be optimised away.
    def gated(go, data):
        with tf.control_dependencies([tf.identity(go)]):
            return step(data)

    return gated


def local_rows(strategy: tf.distribute.Strategy, data: Any) -> list[Any] | None:
    """Returns the rows of every replica, without a reduction; `None` where other workers hold rows too.

    Args:
        strategy: The strategy.
        data: `x`, `(x, y)` or `(x, y, sample_weight)` of all replicas.

    Returns:
        One count per replica, integers or scalar tensors.
    """
    if private.in_multi_worker_mode(strategy):
        return None
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    return [rows_of(part) for part in strategy.experimental_local_results(first_leaf(x))]


def batch_of(
    x: Any, rows: Any, model: keras.Model, rows_of_replicas: list[Any] | None, *, has_rows: bool | None = None
) -> GlobalBatch:
    """Returns this replica's view of a batch whose rows have been counted.

    Args:
        x: Features of this replica.
        rows: B.
        model: The model.
        rows_of_replicas: From `local_rows`.
        has_rows: Whether B > 0 where that is known beforehand, else `None`.

    Returns:
        The `GlobalBatch` of the step.
    """
    if rows_of_replicas is None:
        return GlobalBatch.of_step(x, model=model, rows=rows, has_rows=has_rows)
    before = rows_of_replicas[: collective.replica_in_context()]
    counts = {"first_row": _sum(before), "global_rows": _sum(rows_of_replicas)}
    return GlobalBatch.of_step(x, model=model, rows=rows, has_rows=has_rows, **counts)


def _sum(counts):
    if all(isinstance(count, int) for count in counts):
        return sum(counts)
    return tf.add_n([tf.convert_to_tensor(count) for count in counts])
