"""Every number of a model that training changes: read and set, whatever the number of replicas."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from mirrored_keras.replica import private, workers
from mirrored_keras.replica.update import inner_optimizers

GROUPS = ("weights", "optimizer", "metrics")


def variables_of(model: keras.Model) -> dict[str, list[keras.Variable]]:
    """Returns the variables of a built and compiled model, in an order that names do not change.

    Args:
        model: The model.

    Returns:
        Group -> variables: weights with moving statistics; everything of the optimizer, with slots, iterations, loss
        scale, averages and accumulators; totals and counts of the metrics.
    """
    metrics: dict[int, keras.Variable] = {}
    for metric in model.metrics:
        for variable in metric.variables:
            metrics.setdefault(id(variable), variable)
    optimizer = [] if optimizer_of(model) is None else list(model.optimizer.variables)
    return {"weights": list(model.weights), "optimizer": optimizer, "metrics": list(metrics.values())}


def optimizer_of(model: keras.Model) -> keras.optimizers.Optimizer | None:
    """Returns the optimizer of a model, `None` if it has none or was never compiled.

    Args:
        model: The model.
    """
    return getattr(model, "optimizer", None)


def description_of(model: keras.Model) -> dict[str, Any]:
    """Returns what must agree between the model that wrote a state and the one that goes on from it.

    Args:
        model: A built and compiled model.

    Returns:
        Classes and activations of layers; names, shapes and dtypes of weights; class and variables of the
        optimizer; variables of metrics.
    """
    variables = variables_of(model)
    layers = [layer for layer in private.all_layers(model) if layer is not model]
    return {
        "layers": [_kind(layer) for layer in layers],
        "weights": [f"{v.name} {tuple(v.shape)} {v.dtype}" for v in variables["weights"]],
        "optimizer": " of ".join(map(_kind_of_optimizer, inner_optimizers(optimizer_of(model)))),
        # names of slots hold the names of layers, which differ between processes
        "optimizer_variables": [f"{tuple(v.shape)} {v.dtype}" for v in variables["optimizer"]],
        "metrics": [f"{tuple(v.shape)} {v.dtype}" for v in variables["metrics"]],
    }


def _kind_of_optimizer(optimizer):
    # what decides which slots there are: two kinds may have slots of the same shapes
    names = ("use_ema", "gradient_accumulation_steps", "amsgrad", "centered", "momentum")
    options = [name for name in names if isinstance(getattr(optimizer, name, None), (bool, int, float))]
    used = [name for name in options if getattr(optimizer, name)]
    return type(optimizer).__name__ + (f" with {', '.join(used)}" if used else "")


def _kind(layer):
    activation = getattr(getattr(layer, "activation", None), "__name__", "")
    return f"{type(layer).__name__} {activation}".strip()


def read_arrays(model: keras.Model) -> dict[str, np.ndarray]:
    """Reads all variables. Every one of several workers must call it.

    Args:
        model: The model.

    Returns:
        `group/number` -> value; where replicas differ, as in metrics, `group/number/replicas` -> one per replica.
    """
    arrays = {}
    for group, variables in variables_of(model).items():
        for number, variable in enumerate(variables):
            copies = [np.asarray(copy) for copy in _copies(variable)]
            if variable.synchronization == "on_read":
                copies = _of_all_workers(model, copies)
            if all(_same_bits(copies[0], copy) for copy in copies[1:]) and variable.synchronization != "on_read":
                arrays[f"{group}/{number}"] = copies[0]
            else:
                arrays[f"{group}/{number}/replicas"] = np.stack(copies)
    return arrays


def set_arrays(model: keras.Model, arrays: dict[str, np.ndarray], *, groups: Sequence[str] = GROUPS) -> None:
    """Sets all variables on every replica.

    On as many replicas as wrote the state, each gets its own numbers again. On another number, the parts of what
    is summed over replicas are summed on the first one.

    Args:
        model: The model, with the same layers and optimizer.
        arrays: From `read_arrays`, on any number of replicas.
        groups: Which groups to set.
    """
    strategy = model.distribute_strategy
    here = workers.replicas_here(strategy)
    for group, variables in variables_of(model).items():
        if group not in groups:
            continue
        for number, variable in enumerate(variables):
            name = f"{group}/{number}"
            copies = _copies(variable)
            if name in arrays:
                values = [arrays[name]] * len(copies)
            else:
                stored = arrays[f"{name}/replicas"]
                values = _shared_out(stored, strategy.num_replicas_in_sync, variable)[here.start : here.stop]
            for copy, value in zip(copies, values, strict=True):
                copy.assign(value)


def _of_all_workers(model, copies):
    strategy = model.distribute_strategy
    if not workers.are_several(strategy):
        return copies
    # float64 holds every number of float32, and counts exactly
    own = np.concatenate([np.ravel(copy) for copy in copies])
    table = workers.gathered(strategy, own, what="writing a state on every worker")
    return [part.reshape(copies[0].shape).astype(copies[0].dtype) for part in table.reshape(-1, copies[0].size)]


def _shared_out(stored, replicas, variable):
    if len(stored) == replicas:
        return list(stored)
    if variable.aggregation == "only_first_replica":
        return [stored[0]] * replicas
    if variable.aggregation == "mean":
        return [stored.mean(axis=0).astype(stored.dtype)] * replicas
    if variable.aggregation == "sum" or variable.synchronization == "on_read":
        total = stored[0]
        for part in stored[1:]:
            total = total + part
        return [total] + [np.zeros_like(total)] * (replicas - 1)
    return [stored[0]] * replicas


def _same_bits(one, other):
    return one.tobytes() == other.tobytes()


def _copies(variable):
    value = variable.value
    return list(getattr(value, "values", [value]))
