"""Reads the logs of a step that ran on several replicas: metrics from their sums, other values by rows."""

from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.errors import SetupError, message
from mirrored_keras.replica import private
from mirrored_keras.step import totals

_METHODS = ("auto", "mean", "sum", "first")


def metric_variables(model: keras.Model) -> list[keras.Variable]:
    """Returns the variables of all metrics of a model, each once, in a stable order.

    Args:
        model: A compiled model.

    Returns:
        The variables.
    """
    seen: dict[int, keras.Variable] = {}
    for metric in model.metrics:
        for variable in metric.variables:
            seen.setdefault(id(variable), variable)
    return list(seen.values())


def states_of_own_rows(model: keras.Model) -> list[keras.Variable]:
    """Returns the variables of `metric_variables` that a replica updates with its own rows.

    Args:
        model: A compiled model.

    Returns:
        All but those of `GlobalBatchMetric`.
    """
    return [variable for variable in metric_variables(model) if not getattr(variable, "sees_all_rows", False)]


def of_all_replicas(model: Any, outputs: Any, states: Any, rows: Any, *, own_loss: bool) -> Any:
    """Returns what a step logs, for the global batch.

    A name that is a metric's is read from the metric's variables, summed over the replicas, as after
    the epoch. Every other value is reduced by the model's `distribute_reduction_method`.

    Args:
        model: The model.
        outputs: What the step returned on the replicas.
        states: The values of `metric_variables` on the replicas.
        rows: B of the replicas.
        own_loss: Whether the step returns a `loss` that no metric keeps.

    Returns:
        The same structure as `outputs`, one value for all replicas.
    """
    local = model.distribute_strategy.experimental_local_results
    rows = local(rows)
    if not isinstance(outputs, dict):
        return _reduce(model, outputs, rows)
    metrics = _metrics_result(model, [local(state) for state in states])
    if own_loss:
        metrics.pop("loss", None)
    return _named(model, outputs, metrics, rows)


def _named(model, outputs, metrics, rows):
    named = {}
    for name, value in outputs.items():
        if isinstance(value, dict):
            # the result of a metric with several numbers, as that of all compiled metrics together
            named[name] = _named(model, value, metrics, rows)
        else:
            named[name] = metrics[name] if name in metrics else _reduce(model, value, rows)
    return named


def _metrics_result(model, states):
    variables = metric_variables(model)
    if not variables:
        return {}
    replicas = len(states[0])
    packed = [totals.pack([state[r] for state in states]) for r in range(replicas)]
    sums = {name: tf.add_n([part[name] for part in packed]) for name in packed[0]}
    combined = totals.unpack(sums, [state[0] for state in states])
    for index, variable in enumerate(variables):
        if variable.aggregation == "mean":
            combined[index] = tf.cast(combined[index] / replicas, combined[index].dtype)
        elif variable.aggregation == "only_first_replica":
            combined[index] = states[index][0]
    # metrics compute their result from their variables, or return one; here they see the sums instead
    with keras.StatelessScope(state_mapping=list(zip(variables, combined, strict=True))):
        return keras.tree.map_structure(value_of, dict(model.get_metrics_result()))


def value_of(result: Any) -> Any:
    """Returns a variable's value, as the scope around has it, and anything else as it is.

    Args:
        result: What a metric returned as its result.
    """
    return tf.convert_to_tensor(result) if isinstance(result, keras.Variable) else result


def _reduce(model, structure, rows):
    method = private.reduction_method(model)
    if method not in _METHODS:
        raise SetupError(
            message(
                f"`distribute_reduction_method` must be one of {_METHODS}.",
                f"distribute_reduction_method={method!r}",
                'model.distribute_reduction_method = "auto"',
            )
        )
    local = model.distribute_strategy.experimental_local_results
    return keras.tree.map_structure(lambda value: _reduce_value(local(value), rows, method), structure)


def _reduce_value(values, rows, method):
    if len(values) == 1 or method == "first":
        return values[0]  # the same object on every replica
    if method == "sum":
        return tf.add_n([tf.convert_to_tensor(value) for value in values])
    if method == "mean":
        return tf.reduce_mean(tf.stack(values), axis=0)
    return totals.mean_of_replicas([tf.convert_to_tensor(value) for value in values], rows)
