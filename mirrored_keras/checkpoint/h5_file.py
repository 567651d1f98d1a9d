"""Whole models in one HDF5 file: Keras' own layout, and beside it what that layout drops.

Keras writes weights, optimizer state and a configuration in the style of Keras 2, which loses the optimizer when
it is read. Beside it stands the configuration that `.keras` files have, from which `load_h5` makes the model.
"""

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import h5py
import keras

from mirrored_keras import DistributedModel
from mirrored_keras.checkpoint.contents import extra_of, write_extra
from mirrored_keras.checkpoint.optimizer_state import OWN_GROUP, restore_optimizer
from mirrored_keras.errors import CheckpointError, message
from mirrored_keras.replica import private

_GETTERS = {"loss": keras.losses.get, "metrics": keras.metrics.get, "weighted_metrics": keras.metrics.get}
_KEPT_NAMES = ("accuracy", "acc", "crossentropy", "ce")  # their meaning depends on the output's shape


def save_h5(model: keras.Model, path: str, *, plain: bool = False) -> None:
    """Writes a functional or sequential model with its optimizer's state.

    Args:
        model: The model.
        path: A new file.
        plain: Whether to leave out what only this package reads.
    """
    optimizer = getattr(model, "optimizer", None)
    slots = [] if optimizer is None else optimizer.variables
    unique = len({variable.path for variable in slots}) == len(slots)
    try:
        with private.compile_config_replaced(model, _names_in_full), h5py.File(path, "w") as file:
            private.save_model_to_hdf5(model, file, include_optimizer=unique)
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        raise CheckpointError(
            message(
                "The layout of whole-model HDF5 files is that of Keras, which names weights by layer.",
                f"model={model.name!r}: {' '.join(str(error).split())[:300]}",
                'save_model(model, "model.keras")',
            )
        ) from error
    if plain:
        return
    write_extra(path, extra_of(model, {"model": private.serialized_model(model)}))
    if not unique:
        with h5py.File(path, "a") as file:
            for index, variable in enumerate(slots):
                file[f"{OWN_GROUP}/{index}"] = keras.ops.convert_to_numpy(variable)


def load_h5(
    path: str, extra: dict[str, Any] | None, *, custom_objects: Mapping[str, Any], compiled: bool, safe_mode: bool
) -> keras.Model:
    """Makes a model from an HDF5 file, with its optimizer's state.

    Args:
        path: A file of `save_h5`, or one that Keras wrote.
        extra: What `read_extra` found in it.
        custom_objects: Name -> class or function.
        compiled: Whether to compile it as it was.
        safe_mode: Whether code in the file is refused.

    Returns:
        The model; its variables belong to the current strategy.
    """
    if extra is None:
        model = _of_stock_file(path, custom_objects, compiled, safe_mode)
    else:
        config = dict(extra["model"])
        if not compiled:
            config.pop("compile_config", None)
        model = private.model_from_serialized(config, custom_objects, safe_mode)
        keras.Model.load_weights(model, path)
    if compiled:
        restore_optimizer(model, extra, path)
    return model


def _of_stock_file(path, custom_objects, compiled, safe_mode):
    # the file has the bare name of the class
    known = {"DistributedModel": DistributedModel, **custom_objects}
    model = keras.saving.load_model(path, compile=False, custom_objects=known, safe_mode=safe_mode)
    with h5py.File(path, "r") as file:
        text = file.attrs.get("training_config")
    if compiled and text is not None:
        config = json.loads(text)
        with keras.saving.custom_object_scope(dict(custom_objects)):
            arguments = private.compile_arguments_of_h5(_names_in_full(config))
            for name, get in _GETTERS.items():
                arguments[name] = _as_named(config.get(name), arguments[name], get)
            model.compile(**arguments)
    return model


def _names_in_full(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a compile configuration in which the short names, which Keras cannot read back, are the full ones."""
    return {**config, **{name: _mapped(config.get(name), get) for name, get in _GETTERS.items()}}


def _as_named(config, made, get):
    """Returns the losses or metrics of a file, by their names where they were named: logs are called after them."""
    if isinstance(config, str):
        with contextlib.suppress(ValueError):
            get(config)
            return config
    if isinstance(config, dict) and isinstance(made, dict):
        return {name: _as_named(config.get(name), part, get) for name, part in made.items()}
    if isinstance(config, list) and isinstance(made, list):
        return [_as_named(part, made_part, get) for part, made_part in zip(config, made, strict=True)]
    return made


def _mapped(part, get):
    if isinstance(part, str) and part not in _KEPT_NAMES:
        with contextlib.suppress(ValueError):
            return _name_of(get(part)) or part
    if isinstance(part, dict) and "class_name" not in part:
        return {name: _mapped(value, get) for name, value in part.items()}
    if isinstance(part, (list, tuple)):
        return [_mapped(value, get) for value in part]
    return part


def _name_of(made):
    return type(made).__name__ if isinstance(made, keras.metrics.Metric) else getattr(made, "__name__", None)
