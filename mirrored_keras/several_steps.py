"""Several steps in one call of a graph: `steps_per_execution` without Python between the steps."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from mirrored_keras.replica import feeding


class SeveralSteps:
    """Runs up to so many steps as there are batches, in one graph, and reads the logs once.

    The loop is made outside the replicas, around them, where sums over replicas are allowed in it, and
    the step is traced straight into it: TensorFlow's default collectives fail in a nested function. A batch
    is drawn only for a step that will run, so that the next call finds every batch that is left.

    Args:
        step: `StepRunner.own_values`.
        logs: `StepLogs.of_all_replicas`.
        has_own_values: Whether the step may return values of its own. The loop hands them on from step to
            step, so a single step must have shown them by `learn` first.
    """

    def __init__(
        self,
        step: Callable[[Any, tf.Tensor], list[Any]],
        logs: Callable[[list[Any]], Any],
        *,
        has_own_values: bool,
    ):
        self._step = step
        self._logs = logs
        self._specs: list[Any] | None = None if has_own_values else []

        @tf.autograph.experimental.do_not_convert
        def run(iterator, limit):
            return self._loop(iterator, limit)

        self._run = tf.function(run, reduce_retracing=True)

    @property
    def is_ready(self) -> bool:
        """Whether the step's own values are known, and such that a loop can hand them on."""
        return self._specs is not None

    def learn(self, own: list[Any]) -> None:
        """Notes what a single step returned by itself; only tensors and numbers can be handed on by a loop.

        Args:
            own: From `StepRunner.own_values`, in the graph of that step.
        """
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
        done, logs = self._run(iterator, tf.constant(limit))
        return int(done), logs

    def _loop(self, iterator, limit):
        def is_left(step, batch, *_):
            return tf.logical_and(step < limit, batch.has_value())

        def run_step(step, batch, *_):
            data = feeding.none_for_empty_optionals(batch.get_value())
            own = tf.nest.map_structure(tf.convert_to_tensor, self._step(data, feeding.go_with(data)))
            batch = tf.cond(step + 1 < limit, iterator.get_next_as_optional, lambda: batch)
            return (step + 1, batch, *own)

        batch = iterator.get_next_as_optional()
        start = tf.nest.map_structure(_zeros, self._specs)
        done, _, *own = tf.while_loop(
            is_left,
            run_step,
            (tf.constant(0), batch, *start),
            shape_invariants=(tf.TensorShape([]), tf.type_spec_from_value(batch), *self._specs),
        )
        return done, self._logs(own)


def _zeros(spec):
    return tf.zeros([size or 0 for size in spec.shape], spec.dtype)
