"""Runs a step on every replica and reads its logs once: the functions behind fit and evaluate."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras import logs
from mirrored_keras.global_batch import GlobalBatch


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
        step: Takes one replica's `GlobalBatch` and data; returns a dict of logs, or any structure of
            tensors.
        around: Makes a context manager to hold while the replicas run.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        step: Callable[[GlobalBatch, Any], Any],
        around: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
    ):
        self._model = model
        self._step = step
        self._around = around
        self._on_data, self._on_iterator = self._functions()

    def __call__(self, iterator: Any) -> Any:
        """Runs `steps_per_execution` steps and returns the logs after the last of them.

        Args:
            iterator: A dataset iterator, or any Python iterator over distributed batches.

        Returns:
            The step's logs.

        Raises:
            StopIteration: There was no batch left.
        """
        run = self._on_iterator
        if not isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
            run = self._on_next
        result = None
        for done in range(self._model.steps_per_execution):
            try:
                result = run(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                if not done:
                    raise StopIteration from None
                break
        return result

    def _functions(self):
        model = self._model

        @tf.autograph.experimental.do_not_convert
        def on_data(data):
            return self._run(data)

        if not model.run_eagerly:
            on_data = tf.function(on_data, reduce_retracing=True, jit_compile=model.jit_compile)

        @tf.autograph.experimental.do_not_convert
        def on_iterator(iterator):
            data = _none_for_empty_optionals(iterator.get_next())
            drawn = [part for part in tf.nest.flatten(data, expand_composites=True) if tf.is_tensor(part)]
            with tf.control_dependencies(drawn):
                return on_data(data)

        if not model.run_eagerly:
            on_iterator = tf.function(on_iterator, reduce_retracing=True)
        return on_data, on_iterator

    def _on_next(self, iterator):
        return self._on_data(_none_for_empty_optionals(next(iterator)))

    def _run(self, data):
        model = self._model
        strategy = model.distribute_strategy
        several = strategy.num_replicas_in_sync > 1

        def on_replica(data):
            x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
            with GlobalBatch(x) as batch:
                outputs = self._step(batch, data)
                if not several:
                    return outputs
                states = [tf.convert_to_tensor(v.value) for v in logs.metric_variables(model)]
                return outputs, states, tf.convert_to_tensor(batch.rows)

        with self._around():
            results = strategy.run(on_replica, args=(data,))
        return logs.of_all_replicas(model, *results) if several else results


def _none_for_empty_optionals(data):
    return keras.tree.map_structure(
        lambda part: None if isinstance(part, tf.experimental.Optional) else part, data
    )
