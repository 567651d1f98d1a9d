"""Training on one device, written from the formula: the oracle of every invariance test.

    loss = Σ_k λ_k · n_k / d_k  +  every penalty of the model, once
    n_k  = Σ loss · weight · mask                               d_k by the reduction, see `fraction`
    step = optimizer(clip(∂loss / ∂weights))                    duplicates of sparse gradients summed

Nothing of this package is imported here, nor any strategy: a mistake in the step cannot hide in its
own proof. Numbers have the precision of the model, float32 or float64. Legend: K losses, λ weights.
"""

import dataclasses
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


@dataclasses.dataclass(frozen=True)
class Objective:
    """What one replica minimises on a global batch.

    Args:
        losses: a `keras.losses.Loss`, a function or `None` per output, in `keras.tree.flatten`'s order.
        loss_weights: λ_k of each loss. Defaults to 1.
        masks: function from the inputs to one Boolean tensor (or `None`) per output.
        extra: function `(x, y, y_pred)` to a scalar that is added to the loss as it is.
    """

    losses: Sequence[keras.losses.Loss | Callable | None] = ()
    loss_weights: Sequence[float] | None = None
    masks: Callable | None = None
    extra: Callable | None = None


@dataclasses.dataclass(frozen=True)
class ReferenceResult:
    """Weights at the end, the loss of every batch, the loss and the K losses over an epoch's rows."""

    weights: list[np.ndarray]
    batch_losses: list[float]
    epoch_losses: list[float]
    epoch_output_losses: list[list[float]]


def fraction(values, weight, mask, reduction) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns n and d of one loss. For reduction `None` n is a vector, which counts as its sum.

    d is Σ weight·mask for `"mean_with_sample_weight"`, the number of (unmasked) elements for the other
    means, and 1 else. One value for all rows is a mean over rows already: d is 1.
    """
    factor = None if mask is None else tf.cast(mask, values.dtype)
    if weight is not None:
        weight = tf.cast(weight, values.dtype)
        if weight.shape.rank == values.shape.rank + 1 and values.shape.rank:
            weight = tf.squeeze(weight, -1)
        factor = weight if factor is None else factor * weight
    weighted = values if factor is None else values * factor
    one = tf.ones((), values.dtype)
    if reduction not in MEANS or weighted.shape.rank == 0:
        return (tf.reduce_sum(weighted) if reduction == "sum" else weighted), one
    if reduction == "mean_with_sample_weight" and factor is not None:
        return tf.reduce_sum(weighted), tf.reduce_sum(factor)
    counted = tf.size(weighted) if mask is None else tf.math.count_nonzero(mask)
    return tf.reduce_sum(weighted), tf.cast(counted, values.dtype)


def output_losses(objective, x, y, y_pred, sample_weight):
    """Returns the K losses of one global batch, without λ; 0 where everything is masked."""
    outputs = keras.tree.flatten(y_pred)
    weights = keras.tree.flatten(sample_weight) or [None]
    weights = weights * len(outputs) if len(weights) == 1 else weights
    masks = objective.masks(x) if objective.masks else [None] * len(outputs)
    results = []
    parts = zip(objective.losses, keras.tree.flatten(y), outputs, weights, masks, strict=False)
    for loss, target, output, weight, mask in parts:
        if loss is not None:
            call = loss.call if isinstance(loss, keras.losses.Loss) else loss
            values = call(tf.cast(target, output.dtype), output)
            n, d = fraction(values, weight, mask, getattr(loss, "reduction", "mean"))
            results.append(tf.math.divide_no_nan(n, d))
    return results


def total_loss(model, objective, batch, training):
    """Returns the loss to minimise and its K parts of one global batch."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    y_pred = model(x, training=training)
    losses = output_losses(objective, x, y, y_pred, sample_weight)
    scales = objective.loss_weights or [1.0] * len(losses)
    terms = [loss * scale for loss, scale in zip(losses, scales, strict=True)]
    terms += model.losses  # regularizers, activity penalties and add_loss: each once
    terms += [objective.extra(x, y, y_pred)] if objective.extra else []
    return sum(terms[1:], terms[0]), losses


def clip(gradients, clipnorm=None, clipvalue=None, global_clipnorm=None):
    """Clips dense gradients (`None` stays `None`) by the one limit that is given."""
    if clipvalue:
        return [g if g is None else tf.clip_by_value(g, -clipvalue, clipvalue) for g in gradients]
    limit = clipnorm or global_clipnorm
    if not limit:
        return gradients
    norms = [None if g is None else tf.sqrt(tf.reduce_sum(g * g)) for g in gradients]
    if global_clipnorm:
        norms = [tf.sqrt(sum(n * n for n in norms if n is not None))] * len(norms)
    return [
        g if g is None else g * limit / tf.maximum(n, tf.cast(limit, g.dtype))
        for g, n in zip(gradients, norms, strict=True)
    ]


def make_step(model, objective, optimizer, signature):
    """Returns one training step, compiled as `fit` compiles: the operations have the same order."""
    names = ("clipnorm", "clipvalue", "global_clipnorm")
    if optimizer.gradient_accumulation_steps:
        names = ()  # the mean over several batches is clipped, by the optimizer itself
    limits = {name: getattr(optimizer, name) for name in names}
    for name in limits:  # clipping is done here, on the summed gradient
        setattr(optimizer, name, None)

    @tf.function(input_signature=[signature])
    def step(batch):
        with tf.GradientTape() as tape:
            loss, losses = total_loss(model, objective, batch, training=True)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        dense = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        optimizer.apply(clip(dense, **limits), variables)
        return tf.reduce_mean(loss), [tf.reduce_mean(part) for part in losses]

    return step


def train_reference(
    model: keras.Model,
    batches: Sequence[tuple],
    objective: Objective,
    optimizer: keras.optimizers.Optimizer,
    *,
    epochs: int = 1,
) -> ReferenceResult:
    """Trains `model`, built or not, on the global batches, in their order, `epochs` times.

    Batches are tuples `(x,)`, `(x, y)` or `(x, y, sample_weight)` of arrays, rows first. The optimizer
    must be fresh; its own clipping is switched off, unless it accumulates gradients.

    Example:
        objective = Objective(losses=[keras.losses.MeanSquaredError()])
        train_reference(model, [(x, y)], objective, keras.optimizers.SGD(0.1))
    """
    rows = [len(keras.tree.flatten(batch)[0]) for batch in batches]
    signature = keras.tree.map_structure(lambda array: tf.TensorSpec((None, *array.shape[1:]), array.dtype), batches[0])
    model(keras.utils.unpack_x_y_sample_weight(batches[0])[0])
    optimizer.build(model.trainable_variables)
    step = make_step(model, objective, optimizer, signature)
    results = [[step(batch) for batch in batches] for _ in range(epochs)]
    optimizer.finalize_variable_values(model.trainable_variables)
    losses = [[float(loss) for loss, _ in epoch] for epoch in results]
    parts = [[[float(part) for part in parts] for _, parts in epoch] for epoch in results]
    return ReferenceResult(
        weights=model.get_weights(),
        batch_losses=[loss for epoch in losses for loss in epoch],
        epoch_losses=[float(np.average(epoch, weights=rows)) for epoch in losses],
        epoch_output_losses=[np.average(epoch, axis=0, weights=rows).tolist() for epoch in parts],
    )
