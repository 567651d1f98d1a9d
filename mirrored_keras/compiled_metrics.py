"""The metrics given to `compile`: functions that return one number per batch count rows, not batches."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.replica import private
from mirrored_keras.replica.rows import rows_of
from mirrored_keras.whole_batch_metric import is_of_keras, warn_where_states_do_not_add_up


class CompiledMetrics(private.CompileMetrics):
    """Keras' container of compiled metrics, with batch-level functions weighted by rows.

    Keras averages the numbers that a metric function returns per batch, each counted once: a mean of
    means after a short batch, and NaN from a replica without rows. Here such a number stands for each of
    the rows it was computed from. Functions that return a value per row, and metric objects, are Keras' own.
    """

    def build(self, y_true: Any, y_pred: Any) -> None:
        """Matches metrics to outputs as Keras does.

        Args:
            y_true: Structure of targets.
            y_pred: Structure of predictions.
        """
        super().build(y_true, y_pred)
        given = {id(metric) for metric in keras.tree.flatten([self._user_metrics, self._user_weighted_metrics])}
        own = set(given)
        for metric in self.metrics:
            # only wrappers that Keras made here around a function: a user's own object stays as it is
            if type(metric) is keras.metrics.MeanMetricWrapper and id(metric) not in given:
                if not is_of_keras(private.function_of_metric(metric)):
                    own.add(id(metric))
                private.replace_metric_function(metric, value_per_row)
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            for metric, one_y_true, one_y_pred in private.metrics_by_output(self, y_true, y_pred):
                if id(metric) in own:
                    warn_where_states_do_not_add_up(metric, one_y_true, one_y_pred)


def value_per_row(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a metric function so that one number per batch becomes one value per row.

    Args:
        function: Takes `y_true, y_pred`, returns a tensor.

    Returns:
        A function that returns the same tensor, or, in place of a scalar, a vector of B equal values;
        an empty vector on a replica without rows.
    """

    @functools.wraps(function)
    def wrapped(y_true: Any, y_pred: Any, **kwargs: Any) -> tf.Tensor:
        value = tf.convert_to_tensor(function(y_true, y_pred, **kwargs))
        return tf.fill([rows_of(y_pred)], value) if value.shape.rank == 0 else value

    return wrapped
