"""Configurations of losses and metrics with the arguments that Keras leaves out."""

import inspect
from typing import Any

import keras

from mirrored_keras.replica import private


def serialized(structure: Any) -> Any:
    """Serialises losses or metrics as Keras does, and completely.

    Args:
        structure: A loss or metric, or a structure of them.

    Returns:
        What `keras.saving.deserialize_keras_object` takes.
    """
    return completed(structure, keras.saving.serialize_keras_object(structure))


def completed(structure: Any, config: Any) -> Any:
    """Adds the arguments that Keras leaves out: `Huber(delta=0.5)` would come back with a `delta` of 1.

    Args:
        structure: A loss or metric, or a structure of them.
        config: What Keras serialised it to; changed in place.

    Returns:
        `config`.
    """
    if isinstance(config, dict) and config.get("class_name") == "__tuple__":
        config = config["config"]["value"]
    if isinstance(structure, dict) and isinstance(config, dict):
        for name, part in structure.items():
            completed(part, config.get(name))
    elif isinstance(structure, (list, tuple)) and isinstance(config, list):
        for part, part_config in zip(structure, config, strict=False):
            completed(part, part_config)
    elif isinstance(structure, (keras.losses.Loss, keras.metrics.Metric)) and isinstance(config, dict):
        taken = inspect.signature(type(structure)).parameters
        for name, value in private.function_arguments(structure).items():
            if name in taken and isinstance(config.get("config"), dict):
                config["config"].setdefault(name, keras.saving.serialize_keras_object(value))
    return config
