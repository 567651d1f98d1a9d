"""Causes that are seen in the numbers or in the code: states, layers that mix rows, metrics, clipping."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras import layer_states
from mirrored_keras.parity import losses, places
from mirrored_keras.parity.additivity import limits, without_draws
from mirrored_keras.parity.case import Case
from mirrored_keras.parity.comparison import Comparison
from mirrored_keras.parity.findings import Finding
from mirrored_keras.replica import private
from mirrored_keras.replica.instances import replaced_methods

_SAME = 1e-4


def clipping(case: Case) -> list[Finding]:
    """Looks for gradients that an own `train_step` clips.

    Args:
        case: The case.

    Returns:
        At most one finding.
    """
    method = type(case.one.model).train_step
    if not losses.overrides(case.one.model, "train_step") or "clip_by" not in places.source_of(method):
        return []
    evidence = "`train_step` calls a clip_by_... function before the gradients are summed"
    fix = "keras.optimizers.SGD(..., global_clipnorm=1.0)   # clips the sum"
    return [Finding("clipping-before-the-sum", evidence, fix, places.of(method, r"clip_by"))]


def states(case: Case, found: Comparison) -> list[Finding]:
    """Looks for states of own layers among what differs after the first step where anything does.

    Args:
        case: The case.
        found: What differs.

    Returns:
        A finding per layer.
    """
    differing = {one.name: one for one in found.differences if one.kind == "state"}
    findings: dict[str, Finding] = {}
    for state in layer_states.states_of(case.one.model):
        own = not isinstance(state.layer, keras.layers.BatchNormalization)
        name = state.variable.path
        if own and name in differing and state.layer.name not in findings:
            first = differing[name]
            evidence = f"{name!r} is {first.one:.6g} on one replica and {first.other:.6g} on {case.replicas}"
            declared = f"aggregation={state.variable.aggregation!r}"
            fix = 'self.add_weight(..., trainable=False, aggregation="sum")   # or "mean", "only_first_replica"'
            place = places.of(type(state.layer), r"\.assign")
            findings[state.layer.name] = Finding(
                "state-of-own-layer", f"{evidence}; it was made with {declared}", fix, place
            )
    return list(findings.values())


def mixed_rows(case: Case) -> list[Finding]:
    """Looks for the first layer whose output for some rows changes when the other rows are left out.

    Args:
        case: The case.

    Returns:
        At most one finding.
    """
    model = case.fresh_model()
    x, _, _ = keras.utils.unpack_x_y_sample_weight(case.batches[0])
    start, stop = limits(len(keras.tree.flatten(x)[0]), case.replicas)[0]
    whole = _calls(model, x)
    part = _calls(model, keras.tree.map_structure(lambda array: array[start:stop], x))
    for (layer, inputs, output), (other, part_inputs, part_output) in zip(whole, part, strict=False):
        if layer is not other:
            return []  # another path through the model
        plain = isinstance(layer, keras.layers.BatchNormalization) or layer is model
        rows = stop - start
        if plain or not _same(inputs, part_inputs, rows) or _same(output, part_output, rows):
            continue
        evidence = f"the first {rows} rows of the output of {layer.name!r} change when the other rows are left out"
        fix = "gather_rows(inputs) for what needs all rows, or GlobalBatch.current(inputs).mean(value) for a mean"
        return [Finding("layer-mixes-rows", evidence, fix, places.of(type(layer), r"mean\(|sum\(|max\(|std\(|var"))]
    return []


def _calls(model, x):
    """Returns `(layer, inputs, output)` of the calls of all layers, in the order in which they end."""
    calls: list[tuple[Any, Any, Any]] = []

    def recording(layer):
        def wrap(call):
            quiet = without_draws(call) if private.seed_generators_of(layer) else call

            def recorded(*args, **kwargs):
                output = quiet(*args, **kwargs)
                calls.append((layer, keras.tree.flatten(args), keras.tree.flatten(output)))
                return output

            return recorded

        return wrap

    kept = model.get_weights()
    with replaced_methods([(layer, "call", recording(layer)) for layer in private.all_layers(model)]):
        model(x, training=True) if private.call_has_training_argument(model) else model(x)
    model.set_weights(kept)
    return calls


def _same(whole, part, rows):
    for a, b in zip(whole, part, strict=False):
        if not isinstance(a, (tf.Tensor, np.ndarray)) or not a.shape.rank or a.shape[0] == b.shape[0] != rows:
            continue
        a, b = np.asarray(a)[:rows], np.asarray(b)
        if a.shape != b.shape or a.dtype.kind not in "fiub":
            return a.dtype.kind not in "fiub"
        a, b = a.astype("float64"), b.astype("float64")
        if np.max(np.abs(a - b), initial=0.0) > _SAME * max(np.max(np.abs(a), initial=0.0), 1e-6):
            return False
    return True


def logs(case: Case, found: Comparison) -> list[Finding]:
    """Names the metrics that differ although all variables are the same.

    Args:
        case: The case.
        found: What differs.

    Returns:
        A finding per name.
    """
    findings = []
    by_name = _metrics_of(case.one.model)
    for one in found.differences:
        if one.kind != "log":
            continue
        metric = by_name.get(one.name)
        evidence = f"{one.name!r} is {one.one:.6g} on one replica and {one.other:.6g} on {case.replicas}"
        evidence += f" after step {one.step}, with the same weights"
        if metric is not None:
            function = _function_of(metric)
            place = places.of(function or type(metric), r"def update_state|return")
            fix = f"metrics=[GlobalBatchMetric({type(metric).__name__}(...))]"
            findings.append(Finding("metric-not-additive", evidence, fix, place))
        elif losses.overrides(case.one.model, "train_step"):
            place = places.of(type(case.one.model).train_step, r"\breturn\b")
            fix = "return a mean over this replica's rows, or a metric's result"
            findings.append(Finding("log-not-a-mean", evidence, fix, place))
    return findings


def _function_of(metric):
    wrapped = type(metric) is keras.metrics.MeanMetricWrapper
    function = private.function_of_metric(metric) if wrapped else None
    return getattr(function, "__wrapped__", function)


def _metrics_of(model):
    found = {}
    for metric in model.metrics:
        for part in getattr(metric, "metrics", [metric]):
            if metric is not private.loss_tracker(model):
                for name in (part.name, *(f"{output}_{part.name}" for output in getattr(model, "output_names", ()))):
                    found[name] = part
    return found
