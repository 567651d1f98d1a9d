"""Finds the number of micro-batches whose pieces fit into memory, leaving the global batch as it is."""

from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.errors import SetupError, message
from mirrored_keras.global_batch import GlobalBatch
from mirrored_keras.logs import metric_variables
from mirrored_keras.micro_batches import gradients_in_pieces
from mirrored_keras.replica import splitting, startup
from mirrored_keras.replica.rows import first_leaf, rows_of


def find_micro_batches(model: Any, x: Any, y: Any = None, sample_weight: Any = None) -> int:
    """Sets `model.micro_batches` to the smallest power of two whose pieces fit into memory.

    Halves the rows of a piece each time TensorFlow runs out of memory, starting from all rows of a replica.
    The global batch, and so the result of training, stays what it was: a step with k pieces equals one with
    all rows at once. Forward and backward pass are tried; no weight, metric or random state changes.

    Args:
        model: A compiled `DistributedModel` without an own `train_step`.
        x: Features of one global batch, rows first: array, tensor or a structure of them.
        y: Its targets.
        sample_weight: Its weights.

    Returns:
        k; the largest piece has ceil(B / k) rows, B being the rows of the largest replica.

    Raises:
        SetupError: Not even pieces of one row fit.

    Example:
        >>> import keras, numpy as np
        >>> from mirrored_keras import DistributedModel, find_micro_batches
        >>> inputs = keras.Input((4,))
        >>> model = DistributedModel(inputs, keras.layers.Dense(1)(inputs))
        >>> model.compile("sgd", "mse")
        >>> find_micro_batches(model, np.ones((8, 4)), np.ones((8, 1)))
        1
    """
    data = keras.utils.pack_x_y_sample_weight(x, y, sample_weight)
    data = data if isinstance(data, tuple) else (data,)
    with model.distribute_strategy.scope():
        startup.build(model, data)
    rows = -(-int(rows_of(first_leaf(x))) // model.distribute_strategy.num_replicas_in_sync)
    count = 1
    while True:
        model.micro_batches = count
        try:
            _try(model, data, count)
            return count
        except (tf.errors.ResourceExhaustedError, MemoryError) as error:
            if count >= rows:
                raise SetupError(
                    message(
                        "Not even one row per replica fits into memory.",
                        f"micro_batches={count}, rows per replica={rows}",
                        "a smaller model, smaller rows, or devices with more memory",
                    )
                ) from error
            count = min(2 * count, rows)


def _try(model, data, count):
    strategy = model.distribute_strategy
    kept = [*model.non_trainable_variables, *metric_variables(model)]
    before = [variable.numpy() for variable in kept]

    @tf.function(autograph=False)
    def run(data):
        def on_replica(data):
            x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
            with GlobalBatch.of_step(x, model=model):
                gradients, _ = gradients_in_pieces(model, data, count)
            # no sum over replicas: a collective that fails would fail ever after
            return tf.add_n([tf.reduce_sum(tf.convert_to_tensor(g)) for g in gradients if g is not None])

        return strategy.run(on_replica, args=(data,))

    try:
        strategy.experimental_local_results(run(splitting.split_batch(strategy, data)))
    finally:
        for variable, value in zip(kept, before, strict=True):
            variable.assign(value)
