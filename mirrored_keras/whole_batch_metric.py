"""Metrics whose state is no sum over rows: updated with all rows of the global batch, or warned about."""

import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras.errors import SetupError, message
from mirrored_keras.gathering import gather_rows
from mirrored_keras.logs import value_of
from mirrored_keras.replica import private
from mirrored_keras.serialization import serialized


@keras.saving.register_keras_serializable(package="mirrored_keras")
class GlobalBatchMetric(keras.metrics.Metric):
    """A metric updated with the rows of all replicas, for a state that is no sum over rows.

    Metrics keep a state per replica, and the states are summed when they are read. For a running maximum, Welford's
    variance, or anything that depends on the order of rows the sum means nothing. Here every replica updates the
    same state with all G rows of the global batch, in their order, and that of the first replica is read: the
    number of one replica in every log. With one replica it is `metric` itself.

    Args:
        metric: A metric, made in the scope of the strategy; its own variables are not used.
        name: Name in the logs; that of `metric` if `None`.

    Raises:
        SetupError: `metric` is no metric.
        BatchError: From an update, when values are strings, ragged or sparse.

    Example:
        >>> import keras, numpy as np
        >>> from mirrored_keras import DistributedModel, GlobalBatchMetric
        >>> class LargestError(keras.metrics.Metric):
        ...     def __init__(self, name="largest_error"):
        ...         super().__init__(name=name)
        ...         self.largest = self.add_variable((), "zeros", name="largest")
        ...     def update_state(self, y_true, y_pred, sample_weight=None):
        ...         error = keras.ops.max(keras.ops.abs(y_true - y_pred))
        ...         self.largest.assign(keras.ops.maximum(self.largest, error))
        ...     def result(self):
        ...         return self.largest
        >>> inputs = keras.Input((4,))
        >>> model = DistributedModel(inputs, keras.layers.Dense(1)(inputs))
        >>> model.compile("sgd", "mse", metrics=[GlobalBatchMetric(LargestError())])
        >>> history = model.fit(np.ones((10, 4)), np.ones((10, 1)), batch_size=4, verbose=0)
    """

    def __init__(self, metric: keras.metrics.Metric, name: str | None = None):
        if not isinstance(metric, keras.metrics.Metric):
            raise SetupError(
                message(
                    "`GlobalBatchMetric` takes a metric object.",
                    f"metric={metric!r}",
                    "GlobalBatchMetric(keras.metrics.MeanAbsoluteError())",
                )
            )
        super().__init__(name=name or metric.name)
        with private.DotNotTrackScope():
            self.metric = metric
            self._states: list[keras.Variable] = []
        self._adopt_variables()

    def _adopt_variables(self):
        # one state for each of the metric's own variables; some metrics make theirs at the first update
        for own in self.metric.variables[len(self._states) :]:
            state = self.add_variable(
                own.shape,
                lambda shape, dtype=None, own=own: _on_first_replica(own),
                dtype=own.dtype,
                aggregation="only_first_replica",
                name=own.name,
            )
            state.sees_all_rows = True  # nothing to undo on a replica without rows
            with private.DotNotTrackScope():
                self._states = [*self._states, state]

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Updates the state with the rows of all replicas.

        Args:
            *args: Those of the metric's `update_state`: tensors of shape `(B, ...)`; numbers stay as they are.
            **kwargs: Likewise.
        """
        args, kwargs = _all_rows((args, kwargs))
        values = _after_update(self.metric, self._states, *args, **kwargs)
        self._adopt_variables()
        self._assign(values)

    def result(self) -> Any:
        """Returns what the metric computes from the state."""
        with keras.StatelessScope(state_mapping=list(zip(self.metric.variables, self._states, strict=True))):
            # a result may be a variable: read it here, where it stands for the state
            return keras.tree.map_structure(value_of, self.metric.result())

    def reset_state(self) -> None:
        """Puts the state back to where the metric starts."""
        with keras.StatelessScope() as scope:
            self.metric.reset_state()
        self._assign([scope.get_current_value(own) for own in self.metric.variables])

    def _assign(self, values):
        for state, value in zip(self._states, values, strict=True):
            if value is not None:
                state.assign(value)

    def get_config(self) -> dict[str, Any]:
        """Returns the wrapped metric, serialised, and the name."""
        return {"metric": serialized(self.metric), "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "GlobalBatchMetric":
        """Makes the metric that `get_config` described.

        Args:
            config: From `get_config`.
        """
        return cls(keras.saving.deserialize_keras_object(config["metric"]), name=config["name"])


def _all_rows(arguments):
    rows = [leaf for leaf in keras.tree.flatten(arguments) if getattr(leaf, "shape", ())]
    gathered = iter(gather_rows([tf.convert_to_tensor(leaf) for leaf in rows]))
    return keras.tree.map_structure(lambda leaf: next(gathered) if getattr(leaf, "shape", ()) else leaf, arguments)


def _on_first_replica(variable):
    local = tf.distribute.get_strategy().experimental_local_results(variable.value)
    return tf.convert_to_tensor(local[0])


def _after_update(metric, states, *args, **kwargs):
    with keras.StatelessScope(state_mapping=list(zip(metric.variables, states, strict=True))) as scope:
        metric.update_state(*args, **kwargs)
    return [scope.get_current_value(own) for own in metric.variables]


def warn_where_states_do_not_add_up(metric: keras.metrics.Metric, y_true: Any, y_pred: Any) -> None:
    """Warns of a user's metric whose state after all rows is not the sum of the states after their parts.

    It is tried on a few made-up rows; a metric that cannot take them passes. Metrics of Keras and
    `GlobalBatchMetric` are known to be right.

    Args:
        metric: A metric that was given to `compile`.
        y_true: The targets, anything with `shape` and `dtype`.
        y_pred: The predictions, likewise.
    """
    if _is_known(metric) or not metric.variables or _adds_up(metric, y_true, y_pred):
        return
    of_function = type(metric) is keras.metrics.MeanMetricWrapper
    inside = getattr(private.function_of_metric(metric), "__name__", "function") if of_function else "..."
    made = f"{'keras.metrics.' if of_function else ''}{type(metric).__name__}({inside})"
    warnings.warn(
        f"The state of the metric `{metric.name}` ({type(metric).__name__}) is not a sum over rows, and the states "
        "of several replicas are summed when they are read: it logs another number than on one replica.\n"
        f"What to do: compile(metrics=[mirrored_keras.GlobalBatchMetric({made})]), or "
        '`aggregation="only_first_replica"` in `add_variable` if one replica is enough',
        stacklevel=2,
    )


def _is_known(metric):
    if isinstance(metric, GlobalBatchMetric) or any(v.aggregation != "sum" for v in metric.variables):
        return True
    if type(metric) is keras.metrics.MeanMetricWrapper:
        return is_of_keras(private.function_of_metric(metric))
    return is_of_keras(type(metric))


def is_of_keras(value: Any) -> bool:
    """Returns whether a class or function is Keras' own.

    Args:
        value: The class or function.
    """
    return getattr(value, "__module__", "").split(".")[0] == "keras"


def _adds_up(metric, y_true, y_pred):
    random = np.random.default_rng(0)
    parts = [[_made_up(like, rows, random) for like in (y_true, y_pred)] for rows in (3, 2)]
    together = [np.concatenate(both) for both in zip(*parts, strict=True)]
    try:
        with tf.init_scope():
            start = [_on_first_replica(variable) for variable in metric.variables]
            first, second, whole = (
                _after_update(metric, start, *map(tf.constant, data)) for data in (*parts, together)
            )
            pairs = [
                ((a + b).numpy(), c.numpy()) for a, b, c in zip(first, second, whole, strict=True) if c is not None
            ]
            return all(np.allclose(total, value, rtol=1e-2, atol=1e-3) for total, value in pairs)
    except Exception:  # made-up rows prove nothing where they do not fit
        return True


def _made_up(like, rows, random):
    shape = [rows, *(2 if size is None else size for size in like.shape[1:])]
    dtype = tf.as_dtype(like.dtype)
    values = random.uniform(size=shape) if dtype.is_floating else random.integers(0, 2, size=shape)
    return values.astype(dtype.as_numpy_dtype)
