"""Calls the functions that make a model and its data, and examines what they return."""

import traceback
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.doctor.findings import Finding, finding_of_message
from mirrored_keras.doctor.static import static_findings
from mirrored_keras.errors import MirroredKerasError
from mirrored_keras.replica.devices import mirrored_strategy


def findings_of_functions(
    build: Callable[[], keras.Model] | None, make_data: Callable[[], Any] | None, *, replicas: int | None = None
) -> list[Finding]:
    """Makes a model and a dataset, and examines them.

    Args:
        build: Returns a compiled model; called inside a scope. One that makes a strategy of its own may do so.
        make_data: Returns the dataset of `fit`.
        replicas: Of the scope; every GPU, or two CPU replicas, if `None`.

    Returns:
        The findings; an error that a function raises is one of them.
    """
    gpus = len(tf.config.list_physical_devices("GPU"))
    strategy = mirrored_strategy(replicas or gpus or 2)
    try:
        model, data = _built(build, strategy), make_data and make_data()
    except MirroredKerasError as error:
        return [finding_of_message("error", "build function", str(error))]
    except Exception as error:  # whatever stops it belongs in the report
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__} in {place.name}, line {place.lineno}: {str(error).strip() or 'no message'}"
        return [Finding("error", "build function", reason, "python -m pdb -m module   # run the function by itself")]
    if model is None:
        from mirrored_keras.doctor.speed import findings_of_data

        return findings_of_data(data, strategy.num_replicas_in_sync)
    if not isinstance(model, keras.Model):
        reason = f"It returned {type(model).__name__}, and no `keras.Model`."
        return [Finding("error", "build function", reason, "return model")]
    return static_findings(model, data)


def _built(build, strategy):
    if build is None:
        return None
    try:
        with strategy.scope():
            return build()
    except RuntimeError as error:
        if isinstance(error, MirroredKerasError) or "tf.distribute.Strategy" not in str(error):
            raise
        return build()  # it enters the scope of a strategy of its own
