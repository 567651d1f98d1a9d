"""Reads the logs of a step that ran on several replicas: metrics from their sums, other values by rows."""

import functools
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.errors import SetupError, message
from mirrored_keras.replica import collective, private, workers
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


def has_own_metrics(model: keras.Model) -> bool:
    """Returns whether a subclass decides by itself what a step logs.

    Args:
        model: The model.

    Returns:
        Whether it overrides `compute_metrics`.
    """
    return type(model).compute_metrics is not keras.Model.compute_metrics


class StepLogs:
    """Turns what a step returns on the replicas into its logs for the global batch.

    A name that is a metric's is read from the metric's variables, summed over the replicas, as after the
    epoch; so several steps can run before it is read. Every other value is the step's own: it is reduced
    over the replicas as the model's `distribute_reduction_method` says.

    Args:
        model: The model.
        reads_metrics: Whether metrics are read from their variables on one replica, too.
    """

    def __init__(self, model: keras.Model, *, reads_metrics: bool):
        self.has_own_loss = False  # the step returns a `loss` that no metric keeps; known after tracing
        self._model = model
        self._reads_metrics = reads_metrics or model.distribute_strategy.num_replicas_in_sync > 1
        self._template: Any = None

    def own_values(self, outputs: Any, rows: Any) -> list[Any]:
        """Returns the values that no metric keeps.

        Args:
            outputs: What the step returned on the replicas.
            rows: B of the replicas; `None` on one replica.

        Returns:
            One value per leaf, reduced over the replicas.
        """
        names = private.metric_names(self._model) if self._reads_metrics and isinstance(outputs, dict) else set()
        if self.has_own_loss:
            names.discard("loss")
        own: list[Any] = []
        self._template = _template(outputs, names, own)
        if rows is None:
            return own
        rows = workers.values_of_all_replicas(self._model.distribute_strategy, rows) if own else []
        return [_reduce(self._model, value, rows) for value in own]

    def of_all_replicas(self, own: list[Any]) -> Any:
        """Returns the logs after a step.

        Args:
            own: From `own_values` of that step.

        Returns:
            The structure that the step returned, one value for all replicas.
        """
        metrics = self._metrics() if self._reads_metrics else {}
        return _filled(self._template, metrics, own)

    def _metrics(self):
        model = self._model
        variables = metric_variables(model)
        strategy = model.distribute_strategy
        if strategy.num_replicas_in_sync == 1 or not variables:
            return dict(model.get_metrics_result())
        local = strategy.experimental_local_results
        if workers.are_several(strategy):
            sums = strategy.run(functools.partial(_sums_over_workers, variables))
            return _metrics_result(model, [local(total)[:1] for total in sums], replicas=1)
        states = strategy.run(lambda: [tf.convert_to_tensor(variable.value) for variable in variables])
        return _metrics_result(model, [local(state) for state in states], replicas=strategy.num_replicas_in_sync)


class _Own(int):
    """The place of a step's own value in the list of these."""


def _template(outputs, names, own):
    if not isinstance(outputs, dict):
        own.append(outputs)
        return _Own(len(own) - 1)
    template = {}
    for name, value in outputs.items():
        # a dict is the result of a metric with several numbers, as that of all compiled metrics together
        is_metric = name in names and not isinstance(value, dict)
        template[name] = name if is_metric else _template(value, names, own)
    return template


def _filled(template, metrics, own):
    if isinstance(template, _Own):
        return own[template]
    return {
        name: metrics[part] if isinstance(part, str) else _filled(part, metrics, own) for name, part in template.items()
    }


def _sums_over_workers(variables):
    # one all-reduce per dtype; what is no sum is made one before it
    context = tf.distribute.get_replica_context()
    states = []
    for variable in variables:
        state = tf.convert_to_tensor(variable.value)
        if variable.aggregation == "mean":
            state = tf.cast(state / context.num_replicas_in_sync, state.dtype)
        elif variable.aggregation == "only_first_replica":
            state = tf.where(tf.equal(context.replica_id_in_sync_group, 0), state, tf.zeros_like(state))
        states.append(state)
    packed = totals.pack(states)
    return totals.unpack({name: collective.all_sum_small(part) for name, part in packed.items()}, states)


def _metrics_result(model, states, *, replicas):
    variables = metric_variables(model)
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
    strategy = model.distribute_strategy
    return keras.tree.map_structure(
        lambda value: _reduce_value(workers.values_of_all_replicas(strategy, value), rows, method), structure
    )


def _reduce_value(values, rows, method):
    if len(values) == 1 or method == "first":
        return values[0]  # the same object on every replica
    if method == "sum":
        return tf.add_n([tf.convert_to_tensor(value) for value in values])
    if method == "mean":
        return tf.reduce_mean(tf.stack(values), axis=0)
    if values[0].shape.rank and _are_per_row(values, rows):
        return totals.rows_of_replicas([tf.convert_to_tensor(value) for value in values], rows)
    return totals.mean_of_replicas([tf.convert_to_tensor(value) for value in values], rows)


def _are_per_row(values, rows):
    counts = [value.shape[0] for value in values]
    if None in counts or len(set(counts)) > 1:
        return True
    return counts == [tf.get_static_value(count) for count in rows]
