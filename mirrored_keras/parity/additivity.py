"""Is a number of all rows the mean of the numbers of their parts, weighted by rows? Tried on one device."""

import itertools
from typing import Any

import keras
import numpy as np

from mirrored_keras import GlobalBatchLoss
from mirrored_keras.parity import losses, places
from mirrored_keras.parity.case import Case
from mirrored_keras.parity.findings import Finding
from mirrored_keras.replica import private
from mirrored_keras.replica.instances import replaced_methods

# A mean of float32 numbers in another order is off by 1e-6; a mean of means of unequal parts by 1e-2.
_SAME = 1e-4
_LINES = r"mean\(|sum\(|max\(|sqrt\(|std\("


def limits(rows: int, replicas: int) -> list[tuple[int, int]]:
    """Returns where the parts of the replicas begin and end.

    Args:
        rows: Rows of the global batch.
        replicas: Number of replicas.

    Returns:
        Pairs; parts without rows are left out.
    """
    ends = np.cumsum([0] + [rows // replicas + (part < rows % replicas) for part in range(replicas)])
    return [(int(a), int(b)) for a, b in itertools.pairwise(ends) if b > a]


def _rows_between(structure: Any, start: int, stop: int) -> Any:
    return keras.tree.map_structure(lambda array: None if array is None else array[start:stop], structure)


def _close(a: Any, b: Any) -> bool:
    a, b = np.asarray(a, "float64"), np.asarray(b, "float64")
    size = max(float(np.max(np.abs(a), initial=0.0)), 1e-6)
    return a.shape == b.shape and bool(np.all(np.abs(a - b) <= _SAME * size))


def _mean_of_parts(value_of: Any, rows: int, replicas: int) -> Any:
    return sum(value_of(a, b) * (b - a) / rows for a, b in limits(rows, replicas))


def loss_that_is_not_additive(case: Case, number: int, loss: Any) -> str | None:
    """Returns how the values of a compiled loss depend on all rows, `None` if they do not.

    Args:
        case: The case.
        number: Of the output.
        loss: Its loss.

    Returns:
        What was seen.
    """
    if (
        loss is None
        or isinstance(loss, GlobalBatchLoss)
        or not isinstance(loss, (str, keras.losses.Loss)) | callable(loss)
    ):
        return None
    model = case.fresh_model()
    x, y, _ = keras.utils.unpack_x_y_sample_weight(case.batches[0])
    y_pred = np.asarray(keras.tree.flatten(model(x, training=False))[number])
    y_true = keras.tree.flatten(y)[number]
    rows = len(y_pred)

    def value(a, b):
        return losses.values_of(loss, y_true[a:b], y_pred[a:b])

    try:
        whole = value(0, rows)
        parts = [value(a, b) for a, b in limits(rows, case.replicas)]
    except Exception:  # a loss that fails on plain arrays is not looked into
        return None
    if whole.ndim == 0:
        mean = _mean_of_parts(value, rows, case.replicas)
        if _close(whole, mean):
            return None
        return f"the loss of {rows} rows is {float(whole):.6g}, the mean of that of their parts {float(mean):.6g}"
    if whole.shape[0] == rows and all(part.ndim for part in parts) and _close(whole, np.concatenate(parts)):
        return None
    return f"the losses of a part of {rows} rows are other numbers without the rest"


def own_compute_loss(case: Case) -> list[Finding]:
    """Looks at an own `compute_loss`.

    Args:
        case: The case.

    Returns:
        At most one finding.
    """
    model = case.fresh_model()
    method = type(model).compute_loss
    source = places.source_of(method)
    if not losses.overrides(model, "compute_loss") or "gather_rows" in source or "GlobalBatch" in source:
        return []
    x, y, _ = keras.utils.unpack_x_y_sample_weight(case.batches[0])
    y_pred = keras.tree.map_structure(np.asarray, model(x, training=False))
    rows = len(keras.tree.flatten(x)[0])

    def own(a, b):
        parts = [_rows_between(part, a, b) for part in (x, y, y_pred)]
        data = dict(zip(("x", "y", "y_pred"), parts, strict=True))
        return float(np.mean(private.compute_loss(model, **data, sample_weight=None, training=True)))

    def beyond_keras(a, b):
        parts = [_rows_between(part, a, b) for part in (x, y, y_pred)]
        return own(a, b) - float(np.mean(keras.Model.compute_loss(model, *parts, None, True)))

    for value in (own, beyond_keras):
        try:
            whole, mean = value(0, rows), _mean_of_parts(value, rows, case.replicas)
        except Exception:  # without compiled losses there is nothing to subtract
            continue
        if value is own:
            evidence = f"of {rows} rows it is {whole:.6g}, the mean of that of their parts {mean:.6g}"
        if _close(whole, mean):
            return []
    fix = "gather_rows(y_pred) for what needs all rows; else a mean over rows: ops.mean(...)"
    return [Finding("compute-loss-not-additive", evidence, fix, places.of(method, _LINES))]


def added_losses(case: Case) -> list[Finding]:
    """Looks at what layers add by `add_loss`.

    Args:
        case: The case.

    Returns:
        A finding per layer.
    """
    model = case.fresh_model()
    x, _, _ = keras.utils.unpack_x_y_sample_weight(case.batches[0])
    rows = len(keras.tree.flatten(x)[0])
    whole = _added(model, x)
    parts = [(b - a, _added(model, _rows_between(x, a, b))) for a, b in limits(rows, case.replicas)]
    findings = []
    for layer, values in whole.items():
        if "GlobalBatch" in places.source_of(type(layer)):
            continue
        for number, value in enumerate(values):
            pieces = [(count, added[layer][number]) for count, added in parts if len(added.get(layer, ())) > number]
            mean = sum(count * piece for count, piece in pieces) / rows
            if not _close(value, mean):
                total = sum(piece for _, piece in pieces)
                findings.append(_finding_of(layer, value, mean, is_sum=_close(value, total)))
                break
    return findings


def _finding_of(layer, value, mean, *, is_sum):
    evidence = f"{layer.name!r} adds {value:.6g} for all rows; the mean of what it adds for their parts is {mean:.6g}"
    place = places.of(type(layer), r"add_loss\(")
    if is_sum:
        fix = "self.add_loss(GlobalBatch.current(inputs).sum_of_rows(value))"
        return Finding("add-loss-is-a-sum", evidence, fix, place)
    fix = "self.add_loss(a mean over rows: divide by the rows, not by what this replica counts)"
    return Finding("add-loss-not-additive", evidence, fix, place)


def _added(model, x):
    """Returns the scalars that every layer adds in a forward pass without random numbers."""
    layers = private.all_layers(model)
    kept = model.get_weights()
    quiet = [(layer, "call", without_draws) for layer in layers if private.seed_generators_of(layer)]
    with replaced_methods(quiet):
        model(x, training=True) if private.call_has_training_argument(model) else model(x)
    model.set_weights(kept)
    found = {}
    for layer in layers:
        values = [np.asarray(value) for value in private.added_losses(layer)[0]]
        if values:
            found[layer] = [float(value) for value in values if value.ndim == 0]
    return found


def without_draws(call: Any) -> Any:
    """Wraps the `call` of a random layer so that it draws nothing.

    Args:
        call: The method.

    Returns:
        A function with the same arguments.
    """

    def quiet(*args, **kwargs):
        return call(*args, **{**kwargs, "training": False}) if "training" in kwargs else call(*args, **kwargs)

    return quiet
