"""A user's own `train_step`: made exact where its loss is known, noticed where it is not."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.global_batch import GlobalBatch
from mirrored_keras.replica import private
from mirrored_keras.step import scale

RECIPE = """
    batch = mirrored_keras.GlobalBatch(x)
    with tf.GradientTape() as tape:
        loss = ...                   # a mean over this replica's rows, or batch.loss(loss_object, y, y_pred)
        share = batch.share(loss)    # call 1
    gradients = tape.gradient(share, self.trainable_variables)
    batch.apply_gradients(self.optimizer, gradients, self.trainable_variables)   # call 2
    return {"loss": loss}"""


@contextlib.contextmanager
def guided(model: keras.Model) -> Iterator[None]:
    """Guides a user's `train_step` while it is traced, or runs eagerly, on several replicas.

    A step that takes its loss from `compute_loss` and updates through an optimizer of the model is made
    exact: gradients of L_r become gradients of (B / G) * L_r before they are summed. A step that makes a
    loss of its own and does not use `GlobalBatch` is left as it is, with a warning that shows the recipe.

    Args:
        model: The model whose `train_step` runs inside the block.

    Yields:
        Nothing.
    """
    used: list[GlobalBatch] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(_on_instance(model, "compute_loss", _noting_compute_loss(model)))
        for optimizer in _optimizers(model):
            stack.enter_context(_on_instance(optimizer, "apply", _exact_apply(optimizer, used)))
        yield
    if any(batch.num_replicas > 1 and not (batch.was_shared or batch.loss_was_computed) for batch in used):
        warnings.warn(
            f"`{type(model).__name__}.train_step` makes its own loss and updates the weights without "
            "`GlobalBatch`, so nobody can tell by what its loss was divided: on several replicas its update and "
            "its logs may differ from those on one.\nWhat to do: two calls make it exact:" + RECIPE,
            stacklevel=2,
        )


def update_weights(model: keras.Model, batch: GlobalBatch, tape: tf.GradientTape, share: tf.Tensor) -> None:
    """Takes the gradients of a share and applies their sum over the replicas.

    Args:
        model: The model; without trainable weights only a warning is given, as by Keras.
        batch: The batch.
        tape: The tape that watched the forward pass.
        share: This replica's share of the loss.
    """
    variables = model.trainable_weights
    if not variables:
        warnings.warn("The model does not have any trainable weights.", stacklevel=2)
        return
    batch.apply_gradients(model.optimizer, tape.gradient(share, variables), variables)


@contextlib.contextmanager
def _on_instance(owner: Any, name: str, value: Any) -> Iterator[None]:
    owner.__dict__[name] = value
    try:
        yield
    finally:
        owner.__dict__.pop(name, None)


def _optimizers(model):
    parts = [model.optimizer, *vars(model).values()]
    unique = {id(part): part for part in parts if isinstance(part, keras.optimizers.Optimizer)}
    return list(unique.values())


def _noting_compute_loss(model):
    def compute_loss(*args, **kwargs):
        batch = GlobalBatch.active()
        if batch is not None:
            batch.loss_was_computed = True
        return type(model).compute_loss(model, *args, **kwargs)

    return compute_loss


def _exact_apply(optimizer, used):
    def apply(gradients: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        batch = GlobalBatch.active()
        if batch is None:
            type(optimizer).apply(optimizer, gradients, trainable_variables)
            return
        used.append(batch)
        gradients = list(gradients)
        if batch.num_replicas > 1 and batch.loss_was_computed and not batch.was_shared:
            gradients = [_times_share(gradient, batch) for gradient in gradients]
        variables = private.variables_of(optimizer) if trainable_variables is None else trainable_variables
        batch.apply_gradients(optimizer, gradients, variables)

    return apply


def _times_share(gradient, batch):
    if gradient is None:
        return None
    ratio = scale.rows_ratio(batch.rows, batch.global_rows, gradient.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * ratio, gradient.indices, gradient.dense_shape)
    return gradient * ratio
