"""Losses over all rows of the global batch: value and gradient of one replica, in double precision."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import losses, ops

from devices import strategy_for
from mirrored_keras import DistributedModel, GlobalBatch, GlobalBatchLoss, SetupError, gather_rows
from model.regression import made_under
from whole_batch.training import BATCH, ROWS, assert_trains_as_one

pytestmark = pytest.mark.usefixtures("float64")
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(ROWS, 4)) * np.linspace(0.3, 2.0, ROWS)[:, None]
MASKS = (RANDOM.uniform(size=(ROWS, 5)) < np.linspace(0.1, 0.9, ROWS)[:, None]).astype("float64")
LABELS = RANDOM.integers(0, 3, size=ROWS)
WEIGHTS = RANDOM.uniform(0.2, 3.0, size=ROWS)


@keras.saving.register_keras_serializable(package="tests")
def correlation(y_true, y_pred):
    """One minus the correlation over all elements, as users write it: a function that returns a number."""
    a, b = y_true - ops.mean(y_true), y_pred - ops.mean(y_pred)
    return 1 - ops.sum(a * b) / ops.sqrt(ops.sum(a * a) * ops.sum(b * b) + 1e-9)


class Ranking(losses.Loss):
    """A value per row that depends on the other rows: how far it lies behind the best of its targets."""

    def call(self, y_true, y_pred):
        return ops.mean(ops.square(y_pred - ops.max(y_pred, axis=0)) * y_true, axis=-1)


def to_masks(loss, base=DistributedModel, **compiled):
    def make():
        inputs = keras.Input((4,))
        outputs = keras.layers.Dense(5, activation="sigmoid")(keras.layers.Dense(6, activation="tanh")(inputs))
        model = base(inputs, outputs)
        model.compile(keras.optimizers.Adam(0.02, clipnorm=0.05), loss=loss(), metrics=["mae"], **compiled)
        return model

    return make


def embeddings(loss):
    def make():
        inputs = keras.Input((4,))
        model = DistributedModel(inputs, keras.layers.UnitNormalization()(keras.layers.Dense(3)(inputs)))
        model.compile(keras.optimizers.SGD(0.01), loss=loss())
        return model

    return make


LOSSES = {
    "dice": lambda: GlobalBatchLoss(losses.Dice()),
    "dice by name": lambda: GlobalBatchLoss("dice"),
    "dice per column": lambda: GlobalBatchLoss(losses.Dice(axis=0)),
    "tversky": lambda: GlobalBatchLoss(losses.Tversky(alpha=0.3, beta=0.7)),
    "function": lambda: GlobalBatchLoss(correlation),
    "sum": lambda: GlobalBatchLoss(Ranking(reduction="sum")),
    "mean": lambda: GlobalBatchLoss(Ranking(reduction="mean")),
    "weighted mean": lambda: GlobalBatchLoss(Ranking(reduction="mean_with_sample_weight")),
    "unreduced": lambda: GlobalBatchLoss(Ranking(reduction=None)),
    "a mean over rows": lambda: GlobalBatchLoss(losses.CategoricalGeneralizedCrossEntropy()),
}


@pytest.mark.parametrize("replicas", [2, 3, 4, 8])
@pytest.mark.parametrize("name", ["dice", "tversky", "unreduced"])
def test_compiled_loss_on_more_replicas(name, replicas):
    assert_trains_as_one(to_masks(LOSSES[name]), replicas, (X, MASKS))


@pytest.mark.parametrize("name", LOSSES)
def test_compiled_loss_with_weights(name):
    assert_trains_as_one(to_masks(LOSSES[name]), 4, (X, MASKS), sample_weight=WEIGHTS)


@pytest.mark.parametrize("replicas", [2, 4])
def test_circle_with_integer_labels(replicas):
    assert_trains_as_one(embeddings(lambda: GlobalBatchLoss(losses.Circle(gamma=4.0))), replicas, (X, LABELS))


def test_eagerly():
    assert_trains_as_one(to_masks(LOSSES["dice"], run_eagerly=True), 4, (X, MASKS), epochs=1)
    assert_trains_as_one(to_masks(LOSSES["unreduced"], run_eagerly=True), 4, (X, MASKS), epochs=1)


@pytest.mark.parametrize("replicas", [3, 8])
def test_one_of_two_outputs(replicas):
    def make():
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(6, activation="tanh")(inputs)
        parts = {
            "mask": keras.layers.Dense(5, activation="sigmoid", name="mask")(hidden),
            "number": keras.layers.Dense(1, name="number")(hidden),
        }
        model = DistributedModel(inputs, parts)
        model.compile(
            "adam",
            loss={"mask": GlobalBatchLoss(losses.Dice()), "number": "mse"},
            loss_weights={"mask": 2.0, "number": 0.3},
        )
        return model

    y = {"mask": MASKS, "number": X.sum(axis=1, keepdims=True)}
    assert_trains_as_one(make, replicas, (X, y), sample_weight={"mask": WEIGHTS, "number": WEIGHTS[::-1]})


def test_mask_of_the_prediction():
    tokens = RANDOM.integers(1, 9, size=(ROWS, 6)) * (np.arange(6) < RANDOM.integers(1, 7, size=ROWS)[:, None])
    targets = RANDOM.uniform(size=(ROWS, 6, 2))

    class WordRanking(losses.Loss):
        def call(self, y_true, y_pred):
            return ops.mean(ops.square(y_pred - y_true) * ops.max(y_pred, axis=0), axis=-1)

    def make():
        inputs = keras.Input((6,), dtype="int32")
        outputs = keras.layers.Dense(2)(keras.layers.Embedding(9, 4, mask_zero=True)(inputs))
        model = DistributedModel(inputs, outputs)
        model.compile("adam", loss=GlobalBatchLoss(WordRanking()))
        return model

    assert_trains_as_one(make, 4, (tokens, targets), sample_weight=WEIGHTS)


class TwoTowers(DistributedModel):
    """Queries and documents, trained by InfoNCE in both directions: the other rows of the batch are the negatives."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.queries, self.documents = keras.layers.Dense(3), keras.layers.Dense(3)

    def call(self, x):
        return ops.normalize(self.queries(x[..., :2])), ops.normalize(self.documents(x[..., 2:]))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        queries, documents = gather_rows(y_pred)
        scores = ops.matmul(queries, ops.transpose(documents)) / 0.2
        numbers = ops.arange(ops.shape(scores)[0])
        both = [ops.sparse_categorical_crossentropy(numbers, part, from_logits=True) for part in (scores, ops.transpose(scores))]
        return ops.mean(both[0] + both[1])


class OwnRowsOnly(TwoTowers):
    """The same loss from each replica's own rows against all others: G / R times G scores instead of G times G."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        batch = GlobalBatch.current(x)
        every = gather_rows(y_pred)
        numbers = batch.first_row + ops.arange(ops.shape(y_pred[0])[0])
        loss = 0.0
        for own, others in ((y_pred[0], every[1]), (y_pred[1], every[0])):
            scores = ops.matmul(own, ops.transpose(others)) / 0.2
            target = ops.one_hot(numbers, ops.shape(others)[0], dtype=scores.dtype)
            loss += ops.mean(ops.categorical_crossentropy(target, scores, from_logits=True))
        return loss


@pytest.mark.parametrize("replicas", [2, 3, 4, 8])
@pytest.mark.parametrize("base", [TwoTowers, OwnRowsOnly])
def test_contrastive_loss(base, replicas):
    def make():
        model = base()
        model.build((None, 4))
        model.compile(keras.optimizers.Adam(0.05))
        return model

    assert_trains_as_one(make, replicas, (X, LABELS))
