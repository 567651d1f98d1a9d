"""The losses that a model was compiled with, output by output, and whether they are means over rows."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras.replica import private
from mirrored_keras.whole_batch_loss import GlobalBatchLoss

_OF_CLASSES = (
    "CategoricalCrossentropy",
    "categorical_crossentropy",
    "CategoricalFocalCrossentropy",
    "categorical_focal_crossentropy",
    "CategoricalGeneralizedCrossEntropy",
    "CategoricalHinge",
    "categorical_hinge",
)


def compiled(model: keras.Model, name: str = "loss") -> Any:
    """Returns an argument that a model was compiled with.

    Args:
        model: A compiled model.
        name: Of the argument.

    Returns:
        As it was given.
    """
    return private.compile_arguments(model).get(name)


def per_output(model: keras.Model, name: str = "loss") -> list[Any]:
    """Returns one loss (or loss weight), or `None`, per output, in `keras.tree.flatten`'s order.

    Args:
        model: A compiled model with outputs.
        name: "loss" or "loss_weights".

    Returns:
        As they were given: objects, functions or names. For "loss_weights", 1.0 where none is given.
    """
    given = compiled(model, name)
    names = getattr(model, "output_names", None) or ["output"]
    structure = private.graph_of(model)[1] if getattr(model, "outputs", None) else None
    if isinstance(given, dict):
        # the names of outputs come in the order of the outputs; those of a dict in the order of its keys
        keys = sorted(structure) if isinstance(structure, dict) and set(given) <= set(structure) else names
        return [given.get(key) for key in keys]
    flat = keras.tree.flatten(given) if isinstance(given, (list, tuple)) else [given]
    return flat * len(names) if len(flat) == 1 and len(names) > 1 else flat


def overrides(model: keras.Model, name: str) -> bool:
    """Returns whether a model's class has a method of its own.

    Args:
        model: The model.
        name: Of the method.

    Returns:
        Whether neither Keras nor this package wrote it.
    """
    from mirrored_keras.model import DistributedModel

    own = getattr(type(model), name)
    return own not in (getattr(keras.Model, name), getattr(DistributedModel, name))


def takes_targets(model: keras.Model) -> bool:
    """Returns whether a batch of the model's has targets.

    Args:
        model: A compiled model.

    Returns:
        `False` where all it minimises is what its layers add.
    """
    given = any(loss is not None for loss in keras.tree.flatten(compiled(model)))
    return given or overrides(model, "compute_loss") or overrides(model, "train_step")


def takes_weights(model: keras.Model) -> bool:
    """Returns whether sample weights can be given: an own step may not unpack them.

    Args:
        model: A compiled model.

    Returns:
        Whether all is Keras' own.
    """
    return not overrides(model, "compute_loss") and not overrides(model, "train_step")


def name_of(loss: Any) -> str:
    """Returns the name of a loss of Keras, as its class or function has it, and "" for any other.

    Args:
        loss: An object, a function or a name.

    Returns:
        The name.
    """
    if isinstance(loss, GlobalBatchLoss):
        return name_of(loss.loss)
    if isinstance(loss, str):
        return name_of(keras.losses.get(loss)) or loss
    if isinstance(loss, private.LossFunctionWrapper) and type(loss) is private.LossFunctionWrapper:
        loss = loss.fn
    named = loss if hasattr(loss, "__name__") else type(loss)
    return named.__name__ if getattr(named, "__module__", "").split(".")[0] == "keras" else ""


def is_of_classes(name: str) -> bool:
    """Returns whether a loss compares distributions over classes, one of which is right.

    Args:
        name: From `name_of`.

    Returns:
        Whether targets are one-hot.
    """
    return name in _OF_CLASSES


def as_object(loss: Any) -> keras.losses.Loss | None:
    """Returns a loss as an object, as `compile` makes it.

    Args:
        loss: An object, a function, a name or `None`.

    Returns:
        The object.
    """
    if loss is None or isinstance(loss, keras.losses.Loss):
        return loss
    found = keras.losses.get(loss)
    return found if isinstance(found, keras.losses.Loss) else private.LossFunctionWrapper(found)


def values_of(loss: Any, y_true: Any, y_pred: Any) -> np.ndarray:
    """Returns what a loss computes, before it is weighted and reduced.

    Args:
        loss: An object, a function or a name.
        y_true: Targets.
        y_pred: Predictions.

    Returns:
        A number, or an array.
    """
    made: Any = as_object(loss)
    made = made.loss if isinstance(made, GlobalBatchLoss) else made
    dtype = made.dtype
    y_true, y_pred = (tf.cast(tf.convert_to_tensor(part), dtype) for part in (y_true, y_pred))
    return keras.ops.convert_to_numpy(made.call(y_true, y_pred))


def rank_of_values(loss: Any, target: np.ndarray) -> int:
    """Returns the rank of what a loss computes: that of a weight per row or element.

    Args:
        loss: An object, a function, a name or `None`.
        target: Targets, as they were made.

    Returns:
        The rank.
    """
    if loss is None:
        return 1
    if name_of(loss).lower().startswith("sparse"):
        return max(target.ndim, 1)
    try:
        # elementwise losses take targets for predictions
        return values_of(loss, target[:3], np.clip(target[:3], 0.05, 0.95)).ndim
    except Exception:  # nothing is known of the losses of others; a weight per row fits most
        return max(target.ndim - 1, 1)
