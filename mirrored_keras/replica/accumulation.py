"""`gradient_accumulation_steps` of an optimizer, under a strategy.

Keras branches inside a replica: either the update, or the accumulators, and both sum or update across
replicas, which TensorFlow refuses in a branch there. Here the branch is made outside the replicas, and its
two sides go back into them.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.replica import private


def update_or_accumulate(
    optimizer: keras.optimizers.Optimizer, gradients: Sequence[Any], variables: Sequence[Any]
) -> None:
    """Adds gradients to the accumulators, or updates by the mean of the last `gradient_accumulation_steps`.

    With n = `gradient_accumulation_steps` and g_i the gradient of global batch i, every n-th batch updates by
    (g_1 + ... + g_n) / n; clipping and weight decay act on that mean, as on one replica. Averages (EMA) are
    brought up to date with every batch, as by Keras.

    Args:
        optimizer: A built optimizer, in replica context under a strategy.
        gradients: Gradients summed over the replicas already, none of them `None`.
        variables: Their variables.
    """
    steps = optimizer.gradient_accumulation_steps
    accumulators = [accumulator.value for accumulator in private.accumulators_of(optimizer, variables)]

    def on_replica(values):
        sums = [tf.convert_to_tensor(total) for total in accumulators]
        means = [(_dense(value, total) + total) / steps for value, total in zip(values, sums, strict=True)]
        private.update_by(optimizer, means, variables)

    def branch(strategy, *values):
        def update():
            strategy.extended.call_for_each_replica(on_replica, args=(values,))
            for total in accumulators:
                strategy.extended.update(total, lambda a: a.assign(tf.zeros_like(a)), group=False)
            return tf.constant(True)

        def accumulate():
            for total, value in zip(accumulators, values, strict=True):
                strategy.extended.update(total, lambda a, v: a.assign_add(_dense(v, a)), args=(value,), group=False)
            return tf.constant(False)

        batches = tf.convert_to_tensor(private.batches_seen(optimizer).value) + 1
        tf.cond(tf.equal(batches % steps, 0), update, accumulate)

    tf.distribute.get_replica_context().merge_call(branch, args=tuple(gradients))
    if optimizer.use_ema:
        private.update_averages(optimizer)


def _dense(gradient, like):
    return tf.cast(tf.convert_to_tensor(gradient), like.dtype)
