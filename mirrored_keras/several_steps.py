"""Several steps in one call of a graph: `steps_per_execution` without Python between the steps."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from mirrored_keras.replica import feeding, private
from mirrored_keras.replica.rows import are_alike, counts_on_replicas
from mirrored_keras.step_records import StepRecords


class SeveralSteps:
    """Runs up to so many steps as there are batches, in one graph, and reads the logs once.

    The loop is made outside the replicas, around them, where sums over replicas are allowed in it, and
    the step is traced straight into it: TensorFlow's default collectives fail in a nested function. A batch
    is drawn only for a step that will run, so that the next call finds every batch that is left.

    Inside the loop every replica has rows, which makes a step cheaper: nothing must stand in for none or be
    selected away. A batch that leaves a replica without rows ends the loop and is trained by a step of its own;
    so is one whose parts differ in rows, which that step refuses.

    Args:
        strategy: The model's strategy.
        step: `StepRunner.own_values`.
        logs: `StepLogs.of_all_replicas`.
        single: Runs one step on a batch as it is and returns its logs.
        has_own_values: Whether the step may return values of its own. The loop hands them on from step to
            step, so a single step must have shown them by `learn` first.
        records: What notes how long steps wait for their batch; read when the loop is traced.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        *,
        step: Callable[..., list[Any]],
        logs: Callable[[list[Any]], Any],
        single: Callable[[Any], Any],
        has_own_values: bool,
        records: Sequence[StepRecords] = (),
    ):
        self._strategy = strategy
        self._step = step
        self._logs = logs
        self._records = records
        # other workers may have rows where this one has none, and all of them must run the same step
        self._knows_rows = not private.in_multi_worker_mode(strategy)
        # of several workers, a loop cannot gather sparse gradients whose size changes from step to step
        self._specs: list[Any] | None = [] if self._knows_rows and not has_own_values else None

        @tf.autograph.experimental.do_not_convert
        def run(iterator, limit):
            return self._loop(iterator, limit)

        @tf.autograph.experimental.do_not_convert
        def run_single(batch):
            return single(feeding.none_for_missing(batch.get_value()))

        self._run = tf.function(run, reduce_retracing=True)
        self._run_single = tf.function(run_single, reduce_retracing=True)

    @property
    def is_ready(self) -> bool:
        """Whether the step's own values are known, and such that a loop can hand them on."""
        return self._specs is not None

    def learn(self, own: list[Any], *, has_sparse_gradients: bool = False) -> None:
        """Notes what a single step returned by itself; only tensors and numbers can be handed on by a loop.

        Args:
            own: From `StepRunner.own_values`, in the graph of that step.
            has_sparse_gradients: Whether that step has summed `IndexedSlices`.
        """
        if has_sparse_gradients and not self._knows_rows:
            return
        if all(isinstance(value, (tf.Tensor, bool, int, float)) for value in tf.nest.flatten(own)):
            self._specs = tf.nest.map_structure(lambda v: tf.type_spec_from_value(tf.convert_to_tensor(v)), own)

    def __call__(self, iterator: Any, limit: int) -> tuple[int, Any]:
        """Runs steps.

        Args:
            iterator: A dataset iterator.
            limit: The largest number of steps.

        Returns:
            The number of steps that ran, and the logs after the last one.
        """
        done, last_logs = 0, None
        while done < limit:
            steps, is_left, batch, logs = self._run(iterator, tf.constant(limit - done))
            if steps:
                done, last_logs = done + int(steps), logs
            if not is_left:
                break
            done, last_logs = done + 1, self._run_single(batch)
        return done, last_logs

    def _loop(self, iterator, limit):
        def draw():
            batch = iterator.get_next_as_optional()
            return batch, tf.cond(batch.has_value(), lambda: self._have_rows(batch.get_value()), lambda: False)

        def note_wait(start, have_rows):
            for records, before in zip(self._records, start, strict=True):
                records.note_wait(before, have_rows)

        def runs(step, _batch, have_rows, *_):
            return tf.logical_and(step < limit, have_rows)

        def run_step(step, batch, have_rows, *_):
            data = feeding.none_for_missing(batch.get_value())
            own = self._step(data, feeding.go_with(data), have_rows=self._knows_rows)
            start = [records.now_updated() for records in self._records]
            batch, have_rows = tf.cond(step + 1 < limit, draw, lambda: (batch, have_rows))
            note_wait(start, have_rows)
            return (step + 1, batch, have_rows, *tf.nest.map_structure(tf.convert_to_tensor, own))

        start = [records.now() for records in self._records]
        batch, have_rows = draw()
        note_wait(start, have_rows)
        number = tf.TensorShape([])
        done, batch, _, *own = tf.while_loop(
            runs,
            run_step,
            (tf.constant(0), batch, have_rows, *tf.nest.map_structure(_zeros, self._specs)),
            shape_invariants=(number, tf.type_spec_from_value(batch), number, *self._specs),
        )
        return done, tf.logical_and(done < limit, batch.has_value()), batch, self._logs(own)

    def _have_rows(self, data):
        if not self._knows_rows:
            return tf.constant(True)
        counts = counts_on_replicas(self._strategy, feeding.none_for_missing(data))
        have_rows = tf.reduce_all(tf.stack([of_replica[0] for of_replica in counts]) > 0)
        return tf.logical_and(have_rows, are_alike(counts))


def _zeros(spec):
    return tf.zeros([size or 0 for size in spec.shape], spec.dtype)
