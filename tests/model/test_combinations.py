"""Features together: masks, weights, synchronised statistics, micro-batches, clipping and averages in one step."""

import keras
import numpy as np
import pytest

from mirrored_keras import DistributedModel
from model.regression import RANDOM, assert_same_logs, assert_same_weights, made_under

LAYERS = keras.layers
STEPS, ROWS = 3, 11  # on three replicas 4, 4 and 3 rows, in two pieces 2 + 2, 2 + 2 and 2 + 1
FIRST_PIECE, SECOND_PIECE = [0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10]  # the rows of each piece on all three replicas
WORDS = RANDOM.integers(0, 6, (STEPS, ROWS, 4))  # word 0 is masked
WORDS[:, [1, 9]] = 0  # rows without any word
TARGETS = RANDOM.normal(size=(STEPS, ROWS, 4, 1)).astype("float32")
WEIGHTS = RANDOM.uniform(0.1, 3.0, (STEPS, ROWS, 4)).astype("float32")


def tagger(micro_batches):
    inputs = keras.Input((4,))
    x = LAYERS.Embedding(6, 3, mask_zero=True)(inputs)
    x = LAYERS.BatchNormalization(synchronized=True, momentum=0.6)(x)
    x = LAYERS.Dense(5, activation="tanh", activity_regularizer="l2")(x)
    model = DistributedModel(inputs, LAYERS.Dense(1)(x))
    adam = keras.optimizers.Adam(0.05, epsilon=1e-3, global_clipnorm=0.05, use_ema=True, ema_overwrite_frequency=2)
    model.compile(adam, "mse", weighted_metrics=["mae"], micro_batches=micro_batches)
    return model


def train(replicas, micro_batches, order):
    model = made_under(replicas, lambda: tagger(micro_batches))
    logs = [
        model.train_on_batch(x[order], y[order], sample_weight=weight[order], return_dict=True)
        for x, y, weight in zip(WORDS, TARGETS, WEIGHTS, strict=True)
    ]
    return model, {name: [float(step[name]) for step in logs] for name in logs[0]}


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_masks_weights_statistics_pieces_clipping_averages(micro_batches):
    """One replica trains the same pieces of the batch, so it sees the same batch statistics."""
    in_order = list(range(ROWS))
    one, expected = train(None, micro_batches, in_order if micro_batches == 1 else FIRST_PIECE + SECOND_PIECE)
    many, received = train(3, micro_batches, in_order)
    assert_same_logs(expected, received)
    assert_same_weights(one, many)


def test_the_pieces_matter():
    """Other pieces have other statistics, so the test above can fail."""
    one, _ = train(None, 2, FIRST_PIECE + SECOND_PIECE)
    other, _ = train(None, 2, list(range(ROWS)))
    assert max(np.abs(a - b).max() for a, b in zip(one.get_weights(), other.get_weights(), strict=True)) > 1e-3
