"""Batch normalisation with the statistics of the global batch: exact, numerically sound, masks included."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.errors import SetupError, message
from mirrored_keras.global_batch import GlobalBatch
from mirrored_keras.replica import collective, private
from mirrored_keras.step import moments


@keras.saving.register_keras_serializable(package="mirrored_keras")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` with the statistics of the global batch, in any model and any loop.

    With n_r values per channel on replica r, their mean m_r and M2_r = sum (x - m_r)^2,

        N = sum_r n_r,  mean = sum_r n_r m_r / N,  variance = sum_r (M2_r + n_r (m_r - mean)^2) / N

    in one small reduction forward and one backward; the gradient through the statistics is exact. Masked
    values and replicas without rows do not count. Moving statistics are updated alike on all replicas.
    In a `DistributedModel`, `keras.layers.BatchNormalization(synchronized=True)` computes the same; this
    layer is for other models in hand-written loops.

    Args:
        **kwargs: Those of `keras.layers.BatchNormalization` but `synchronized`.

    Raises:
        SetupError: `synchronized=False` is given.

    Example:
        >>> import numpy as np
        >>> from mirrored_keras import SyncBatchNormalization
        >>> layer = SyncBatchNormalization()
        >>> rows = layer(np.arange(8.0).reshape(4, 2) + 3000, training=True)
        >>> [round(float(value), 2) for value in rows[:, 0]]
        [-1.34, -0.45, 0.45, 1.34]
    """

    def __init__(self, **kwargs: Any):
        if not kwargs.pop("synchronized", True):
            raise SetupError(
                message(
                    "`SyncBatchNormalization` is synchronised.",
                    "synchronized=False",
                    "keras.layers.BatchNormalization()   # statistics per replica",
                )
            )
        super().__init__(synchronized=True, **kwargs)

    def _moments(self, inputs, mask):
        return global_moments(self, inputs, mask)


def sync_batch_norm(model: keras.Model) -> keras.Model:
    """Makes every `BatchNormalization` of a model use the statistics of the global batch, in place.

    Sets `synchronized=True` on each of them, wherever it lies (nested models, wrappers, attributes): weights,
    names and classes stay, and the saved model loads with plain Keras. A `DistributedModel` then computes the
    statistics of all rows exactly. Costs a small reduction forward and one backward per layer and step;
    pays where a replica has few rows (under about 32), and where results must not depend on the number of
    replicas.

    Args:
        model: A `DistributedModel`, or a model that becomes one by `DistributedModel.from_model`.

    Returns:
        `model` itself. It need not be compiled again.

    Raises:
        SetupError: `model` is no `keras.Model`.

    Example:
        >>> import keras
        >>> from mirrored_keras import DistributedModel, sync_batch_norm
        >>> plain = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
        >>> model = sync_batch_norm(DistributedModel.from_model(plain))
        >>> model.layers[1].synchronized
        True
    """
    if not isinstance(model, keras.Model):
        raise SetupError(
            message(
                "`sync_batch_norm` takes a `keras.Model`.",
                f"model={model!r} (of type {type(model).__name__})",
                "SyncBatchNormalization() for a single layer",
            )
        )
    for layer in private.all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True
        if isinstance(layer, keras.Model):
            # what was traced before has the old statistics in it
            layer.train_function = layer.test_function = layer.predict_function = None
    return model


@contextlib.contextmanager
def sound_statistics(model: keras.Model) -> Iterator[None]:
    """Lets the `BatchNormalization(synchronized=True)` layers of a model use `global_moments` inside the block.

    Args:
        model: The model whose layers run inside the block, in any thread.

    Yields:
        Nothing.
    """
    layers = [one for one in private.all_layers(model) if private.has_stock_moments(one) and one.synchronized]
    with private.moments_replaced(layers, global_moments):
        yield


def global_moments(
    layer: keras.layers.BatchNormalization, inputs: tf.Tensor, mask: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and variance per channel over the global batch, as Keras defines them on one replica.

    Args:
        layer: The layer that normalises.
        inputs: This replica's values, float32 or float64.
        mask: Bool, the shape of `inputs` but for the last dimension; `None` where all values count.

    Returns:
        Two vectors, the same on every replica; a replica without rows gets them and adds nothing. 0 where
        everything is masked.
    """
    batch = GlobalBatch.current(inputs)
    if batch.num_replicas == 1:
        return private.stock_moments(layer, inputs, mask)
    if mask is not None:
        mask = tf.broadcast_to(tf.cast(mask, "bool")[..., tf.newaxis], tf.shape(inputs))
    own = moments.of_replica(inputs, axes=private.reduction_axes(layer), mask=mask)
    parts = collective.all_gather_with_gradient(own, has_rows=batch.has_rows, around=batch.reducing)
    count, mean, squares = moments.merged(parts, mean_is_constant=mask is None)  # as Keras on one replica
    divisor = count
    if mask is not None:
        # Keras divides by a count that is never 0; the squares are then those around its own mean
        divisor = count + keras.config.epsilon()
        kept = mean * count / divisor
        squares += count * tf.square(mean - kept)
        mean = kept
    return mean, tf.math.divide_no_nan(squares, divisor)
