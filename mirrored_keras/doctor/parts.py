"""The parts of a compiled model that are examined: losses, metrics, and the code of layers."""

import inspect
import warnings
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.doctor.findings import Finding, finding_of_message, joined
from mirrored_keras.replica import private
from mirrored_keras.whole_batch_metric import warn_where_states_do_not_add_up


def named(what: str, layers: Iterable[Any]) -> str:
    """Returns a subject that names layers.

    Args:
        what: What they are.
        layers: The layers.
    """
    return f"{what} {joined(repr(layer.name) for layer in layers)}"


def compiled_losses(model: keras.Model) -> list[keras.losses.Loss]:
    """Returns the losses of `compile` as objects; functions that are no losses of Keras are left out.

    Args:
        model: Any model.
    """
    given = private.compile_arguments(model).get("loss") if model.compiled else None
    losses = [keras.losses.get(one) if isinstance(one, str) else one for one in keras.tree.flatten(given)]
    wrapped = [one if isinstance(one, keras.losses.Loss) else _wrapped(one) for one in losses if one is not None]
    return list({id(loss): loss for loss in wrapped}.values())


def _wrapped(function):
    return private.LossFunctionWrapper(function, name=getattr(function, "__name__", "loss"))


def may_assign(layer: keras.layers.Layer) -> bool:
    """Returns whether the class of a layer assigns to variables, as far as its source can be read.

    Args:
        layer: The layer.
    """
    try:
        return ".assign" in inspect.getsource(type(layer))
    except (OSError, TypeError):
        return True


def findings_of_metrics(model: keras.Model, dataset: Any = None) -> list[Finding]:
    """Tries own metrics on made-up rows: is the state of all rows the sum of the states of their parts?

    Args:
        model: A compiled model.
        dataset: Tells what targets look like; without it they are tried in the shape of the outputs, and as classes.
    """
    given = private.compile_arguments(model)
    metrics = [
        metric
        for metric in keras.tree.flatten((given.get("metrics"), given.get("weighted_metrics")))
        if isinstance(metric, keras.metrics.Metric)
    ]
    outputs = keras.tree.flatten(getattr(model, "outputs", None) or [])
    findings = []
    for metric in metrics:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for y_true, y_pred in _shapes(outputs, dataset):
                if not caught:
                    warn_where_states_do_not_add_up(metric, y_true, y_pred)
        if caught:
            findings.append(finding_of_message("error", f"metric {metric.name!r}", str(caught[0].message)))
    return findings


def _shapes(outputs, dataset):
    spec = getattr(dataset, "element_spec", None)
    targets = keras.tree.flatten(spec[1]) if isinstance(spec, tuple) and len(spec) > 1 else []
    for index, output in enumerate(outputs):
        y_pred = tf.TensorSpec(output.shape, output.dtype)
        if len(targets) == len(outputs):
            yield targets[index], y_pred
        else:
            yield y_pred, y_pred
            yield tf.TensorSpec(output.shape[:-1], "int32"), y_pred
