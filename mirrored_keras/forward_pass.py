"""The forward pass of a step: predictions, and the loss that `compute_loss` makes of them."""

from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.replica import private


def predictions_of(model: keras.Model, x: Any, *, training: bool) -> Any:
    """Calls the model on this replica's features.

    Args:
        model: The model.
        x: Features.
        training: Whether the model is trained; handed on if its `call` takes it.

    Returns:
        Predictions.
    """
    return model(x, training=training) if private.call_has_training_argument(model) else model(x)


def loss_of(model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any, *, training: bool) -> tf.Tensor:
    """Calls the model's `compute_loss`; an override may leave `training` out.

    Args:
        model: The model.
        x: Features.
        y: Targets.
        y_pred: Predictions.
        sample_weight: Weights.
        training: Whether the model is trained.

    Returns:
        L_r, in "mean of this replica's rows" units.
    """
    return private.compute_loss(model, x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)
