"""Layers that come back from a file otherwise than they are: warned about, by name, before they are written."""

import warnings

import keras

from mirrored_keras.replica import private

_AS_CLASSES = "write them as layer classes, decorated with @keras.saving.register_keras_serializable()"


def warn_of_unread(model: keras.Model, *, in_hdf5: bool) -> None:
    """Warns about layers that loading refuses.

    Args:
        model: The model.
        in_hdf5: Whether the file is an HDF5 file.
    """
    _warn_of(
        [layer.name for layer in _layers(model) if _is_lambda(layer)],
        "hold a Python lambda, which is code: no file with it is loaded without safe_mode=False",
    )
    if in_hdf5:
        _warn_of(
            [layer.name for layer in _layers(model) if not isinstance(layer, keras.layers.Layer)],
            "are operations without a layer: this package reads them from HDF5, plain Keras from .keras only",
        )


def warn_of_frozen(model: keras.Model) -> None:
    """Warns about layers that were frozen, or the reverse, after the optimizer was built: `compile` decides.

    Args:
        model: The model.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not optimizer.built:
        return
    known = {id(variable) for variable in private.variables_of(optimizer)}
    now = {id(variable) for variable in model.trainable_variables}
    changed = [
        layer.name
        for layer in model.layers
        if any((id(variable) in known) != (id(variable) in now) for variable in layer.variables)
    ]
    _warn_of(
        changed,
        "were frozen or made trainable after `compile`: this model trains on as it was compiled, the restored one as "
        "it is now",
        fix="model.compile(...) inside the scope, before or after saving",
    )


def warn_of_merged(model: keras.Model) -> None:
    """Warns about layers whose weights Keras changes when it writes them.

    Args:
        model: The model.
    """
    _warn_of(
        [layer.name for layer in private.all_layers(model) if getattr(layer, "lora_enabled", False)],
        "have LoRA weights, which Keras adds to the kernel when it writes it: predictions stay, training starts anew",
        fix='keep them by `layer.get_weights()` in a file of your own, or save_model(model, "model.h5")',
    )


def _layers(model):
    found = list(getattr(model, "operations", None) or model.layers)
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            found += _layers(layer)
    return found


def _is_lambda(layer):
    return isinstance(layer, keras.layers.Lambda) and getattr(layer.function, "__name__", "") == "<lambda>"


def _warn_of(names, what, fix=_AS_CLASSES):
    if names:
        warnings.warn(f"Layers {', '.join(map(repr, names))} {what}.\nWhat to do: {fix}.", stacklevel=4)
