"""Gives summed gradients to any Keras optimizer, exactly once."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.replica import private
from mirrored_keras.replica.accumulation import update_or_accumulate
from mirrored_keras.replica.collective import Gradient


def build_optimizer(optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]) -> None:
    """Makes the optimizer's variables, mirrored, also from inside a replica or a `tf.function`.

    Args:
        optimizer: Any Keras optimizer; nothing happens if it is built.
        variables: The trainable variables.
    """
    if optimizer.built:
        return
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        optimizer.build(variables)
        return

    def build(_):
        with tf.init_scope():
            if not optimizer.built:
                optimizer.build(variables)

    context.merge_call(build)


def apply_summed(
    optimizer: keras.optimizers.Optimizer, gradients: Sequence[Gradient], variables: Sequence[Any]
) -> None:
    """Updates `variables` by gradients that every replica holds alike.

    Clipping, weight decay, learning-rate schedules, averages and constraints are the optimizer's own
    and see the gradient of the global batch, as on one replica; only its sum over replicas is left out.

    Args:
        optimizer: Any Keras optimizer, wrappers included.
        gradients: One per variable, `None` where there is none.
        variables: The trainable variables.
    """
    gradients = sum_duplicates(optimizer, gradients)
    parts = inner_optimizers(optimizer)
    with private.gradients_already_summed(parts, update_or_accumulate):
        # by the class: the instance may carry the detour of `own_step.guided`
        type(optimizer).apply(optimizer, gradients, variables)
        if tf.distribute.has_strategy():
            for part in parts:
                overwrite_by_averages(part)


def overwrite_by_averages(optimizer: keras.optimizers.Optimizer) -> None:
    """Overwrites weights by their moving averages every `ema_overwrite_frequency` updates, without a branch.

    Args:
        optimizer: An optimizer that has just updated; nothing happens without the option.
    """
    frequency = private.ema_overwrite_frequency(optimizer)
    if not frequency or not optimizer.use_ema:
        return
    batches = tf.convert_to_tensor(private.batches_seen(optimizer))
    # as Keras: all batches that lead to a due update count, so without accumulation just that update
    updates = (batches - 1) // (optimizer.gradient_accumulation_steps or 1) + 1
    due = tf.logical_and(batches > 0, tf.equal(updates % frequency, 0))
    for variable, average in private.averages_of(optimizer):
        variable.assign(tf.where(due, tf.convert_to_tensor(average), tf.convert_to_tensor(variable)))


def inner_optimizers(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    """Returns the optimizer and all that it wraps (loss scaling, one optimizer per group of variables)."""
    found = [optimizer]
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        found += inner_optimizers(inner)
    for part in getattr(optimizer, "optimizers", None) or ():
        found += inner_optimizers(part)
    return found


def sum_duplicates(optimizer: keras.optimizers.Optimizer, gradients: Sequence[Gradient]) -> list[Gradient]:
    """Adds up the rows of sparse gradients that name the same index.

    An optimizer that squares a gradient, or a norm for clipping, must see the sum of a repeated row,
    not the parts: the square of a sum is not the sum of squares. Plain gradient descent without
    clipping is linear, so its gradients stay as they are.

    Args:
        optimizer: The optimizer that will see them.
        gradients: Dense tensors, `IndexedSlices` or `None`.

    Returns:
        The gradients; `IndexedSlices` with unique indices.
    """
    if all(_is_linear(part) for part in inner_optimizers(optimizer)):
        return list(gradients)
    return [_unique(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]


def _is_linear(optimizer):
    clips = optimizer.clipnorm or optimizer.clipvalue or optimizer.global_clipnorm
    return type(optimizer) is keras.optimizers.SGD and not clips


def _unique(slices):
    indices, positions = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, positions, tf.size(indices))
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def select_where_rows(gradients: Sequence[Gradient], has_rows: tf.Tensor | bool) -> list[Gradient]:
    """Replaces the gradients of a replica without rows by zeros.

    They are selected away, never multiplied by zero: some kernels return uninitialised memory or NaN
    for a batch of no rows.

    Args:
        gradients: Dense tensors, `IndexedSlices` or `None`.
        has_rows: Whether B > 0 on this replica; a scalar bool.

    Returns:
        A list of the same kinds.
    """
    if isinstance(has_rows, bool):
        return list(gradients) if has_rows else [_zeros(g) for g in gradients]
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients if g is not None]
    if not values:
        return list(gradients)
    # one branch, not a select per element: gradients of a replica with rows are not even copied
    kept = iter(tf.cond(has_rows, lambda: [tf.identity(v) for v in values], lambda: [tf.zeros_like(v) for v in values]))
    return [_with_values(g, next(kept)) if g is not None else None for g in gradients]


def _with_values(gradient, values):
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return values


def _zeros(gradient):
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(tf.zeros_like(gradient.values), gradient.indices, gradient.dense_shape)
    return tf.zeros_like(gradient)
