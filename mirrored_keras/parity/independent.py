"""The second witness: the user's model in a loop that is written from the formula, on one device.

Losses given to `compile` are computed by `mirrored_keras.parity.reference`; an own `compute_loss` is called as it is.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.parity import losses, random_layers, reference, variables
from mirrored_keras.parity.runs import Build, Trace, build_on, checked
from mirrored_keras.replica import private
from mirrored_keras.whole_batch_loss import GlobalBatchLoss


def why_not(model: keras.Model) -> str | None:
    """Returns why a model cannot be trained by the independent loop.

    Args:
        model: A compiled model.

    Returns:
        The reason, or `None` if it can.
    """
    if losses.overrides(model, "train_step"):
        return "it has a train_step of its own"
    if model.optimizer is None:
        return "it has no optimizer"
    if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) or model.dtype_policy.compute_dtype != (
        model.dtype_policy.variable_dtype
    ):
        return "mixed precision rounds in another order"
    if random_layers.drawing(model):
        return "it draws random numbers"
    if getattr(model, "micro_batches", 1) > 1:
        return "it trains in micro-batches"
    if losses.overrides(model, "compute_loss"):
        return None
    own_call = [loss for loss in keras.tree.flatten(losses.compiled(model)) if _replaces_call(loss)]
    if own_call:
        return "a loss has a __call__ of its own"
    if not getattr(model, "outputs", None) and isinstance(losses.compiled(model), (dict, list, tuple)):
        return "its losses belong to outputs that are not known"
    return None


def _replaces_call(loss):
    is_loss = isinstance(loss, keras.losses.Loss) and not isinstance(loss, GlobalBatchLoss)
    return is_loss and type(loss).__call__ is not keras.losses.Loss.__call__


def train(build: Build, batches: Sequence[tuple[Any, ...]], *, seed: int, start: variables.State) -> Trace:
    """Trains the model without `fit`, its step or a strategy.

    Args:
        build: The user's function.
        batches: Global batches.
        seed: As for the other runs.
        start: The state to start from.

    Returns:
        The trace; its only log is the loss.
    """
    trace = Trace("independent loop", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keras.utils.set_random_seed(seed)
        trace.model = model = checked(build())
        build_on(model, batches[0])
        variables.set_state(model, start)
        trace.start = variables.state_of(model)
        step = _step_of(model, _signature(batches[0]))
        for batch in batches:
            loss = step(batch)
            trace.add_step({"loss": float(loss)})
    return trace


def _signature(batch):
    return keras.tree.map_structure(lambda array: tf.TensorSpec((None, *array.shape[1:]), array.dtype), batch)


def _step_of(model, signature):
    if losses.overrides(model, "compute_loss"):
        return _step_of_own_loss(model, signature)
    step = reference.make_step(model, objective_of(model), model.optimizer, signature)
    return lambda batch: step(batch)[0]


def objective_of(model: keras.Model) -> reference.Objective:
    """Returns what a compiled model minimises, as the reference takes it.

    Args:
        model: A compiled model without an own `compute_loss`.

    Returns:
        The objective.
    """
    objects = [losses.as_object(loss) for loss in losses.per_output(model)]
    plain = [loss.loss if isinstance(loss, GlobalBatchLoss) else loss for loss in objects]
    weights = losses.per_output(model, "loss_weights") if losses.compiled(model, "loss_weights") is not None else None
    if weights is not None:
        weights = [1.0 if weight is None else weight for weight in weights]
        weights = [weight for weight, loss in zip(weights, plain, strict=False) if loss is not None]

    def masks(x):
        return [private.get_keras_mask(output) for output in keras.tree.flatten(model(x, training=False))]

    return reference.Objective(plain, weights, masks if _has_masks(model) else None)


def _has_masks(model):
    kinds = (keras.layers.Masking, keras.layers.Embedding)
    layers = [layer for layer in private.all_layers(model) if isinstance(layer, kinds)]
    return any(getattr(layer, "mask_zero", True) for layer in layers)


def _step_of_own_loss(model, signature):
    optimizer = model.optimizer
    limits = {} if optimizer.gradient_accumulation_steps else _limits_taken_from(optimizer)

    @tf.function(input_signature=[signature])
    def step(batch):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True) if private.call_has_training_argument(model) else model(x)
            loss = private.compute_loss(model, x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
        trained = model.trainable_variables
        gradients = tape.gradient(loss, [variable.value for variable in trained])
        dense = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        optimizer.apply(reference.clip(dense, **limits), trained)
        return tf.reduce_mean(loss)

    return step


def _limits_taken_from(optimizer):
    limits = {name: getattr(optimizer, name) for name in ("clipnorm", "clipvalue", "global_clipnorm")}
    for name in limits:
        setattr(optimizer, name, None)
    return limits
