"""Losses over all rows of the global batch: value and gradient of one replica, in double precision."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import losses, ops

from devices import strategy_for
from mirrored_keras import DistributedModel, GlobalBatch, GlobalBatchLoss, gather_rows
from whole_batch.training import ROWS, assert_trains_as_one

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.table(every=3)]
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


def to_masks(loss, **compiled):
    def make():
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(6, activation="tanh")(inputs)
        model = DistributedModel(inputs, keras.layers.Dense(5, activation="sigmoid")(hidden))
        model.compile(keras.optimizers.SGD(0.5, clipnorm=0.5), loss=loss(), metrics=["mae"], **compiled)
        return model

    return make


def to_labels(loss, head):
    def make():
        inputs = keras.Input((4,))
        model = DistributedModel(inputs, head(keras.layers.Dense(3)(inputs)))
        model.compile(keras.optimizers.SGD(0.01), loss=GlobalBatchLoss(loss))
        return model

    return make


WEIGHTED = {
    "tversky": lambda: losses.Tversky(alpha=0.3, beta=0.7),
    "function": lambda: correlation,
    "sum": lambda: Ranking(reduction="sum"),
    "mean": lambda: Ranking(reduction="mean"),
    "weighted_mean": lambda: Ranking(reduction="mean_with_sample_weight"),
}


def test_dice_without_weights():
    assert_trains_as_one(to_masks(lambda: GlobalBatchLoss("dice")), [2, 8], (X, MASKS))


def test_dice_per_column():
    assert_trains_as_one(to_masks(lambda: GlobalBatchLoss(losses.Dice(axis=0))), [4], (X, MASKS))


def test_with_weights():
    """One output for each loss, with weights of its own."""

    def make():
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(6, activation="tanh")(inputs)
        outputs = {name: keras.layers.Dense(5, activation="sigmoid", name=name)(hidden) for name in WEIGHTED}
        model = DistributedModel(inputs, outputs)
        model.compile("adam", loss={name: GlobalBatchLoss(loss()) for name, loss in WEIGHTED.items()})
        return model

    weights = {name: np.roll(WEIGHTS, 3 * i) for i, name in enumerate(WEIGHTED)}
    assert_trains_as_one(make, [4], (X, dict.fromkeys(WEIGHTED, MASKS)), sample_weight=weights)


def test_unreduced_with_weights():
    make = to_masks(lambda: GlobalBatchLoss(Ranking(reduction=None)))
    assert_trains_as_one(make, [3], (X, MASKS), sample_weight=WEIGHTS)


def test_circle_with_integer_labels():
    make = to_labels(losses.Circle(gamma=4.0), keras.layers.UnitNormalization())
    assert_trains_as_one(make, [4], (X, LABELS), masked=True)


def test_a_mean_over_rows_stays_one():
    make = to_labels(losses.CategoricalGeneralizedCrossEntropy(), keras.layers.Softmax())
    assert_trains_as_one(make, [4], (X, LABELS))


@pytest.mark.parametrize("loss", [losses.Dice, lambda: Ranking(reduction=None)])
def test_eagerly(loss):
    make = to_masks(lambda: GlobalBatchLoss(loss()), run_eagerly=True)
    assert_trains_as_one(make, [4], (X[:3], MASKS[:3]), epochs=1)  # 1, 1, 1 and 0 rows


def test_one_of_two_outputs():
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
    assert_trains_as_one(make, [3], (X, y), sample_weight={"mask": WEIGHTS, "number": WEIGHTS[::-1]})


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

    weights = WEIGHTS[:, None] * np.linspace(0.5, 2.0, 6)
    assert_trains_as_one(make, [4], (tokens, targets), sample_weight=weights, masked=True)


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
        both = [
            ops.sparse_categorical_crossentropy(numbers, part, from_logits=True)
            for part in (scores, ops.transpose(scores))
        ]
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


@pytest.mark.parametrize(("base", "replicas"), [(TwoTowers, 2), (TwoTowers, 4), (OwnRowsOnly, 3)])
def test_contrastive_loss(base, replicas):
    def make():
        model = base()
        model(np.zeros((1, 4)))
        model.compile(keras.optimizers.Adam(0.05))
        return model

    assert_trains_as_one(make, [replicas], (X, LABELS))


def test_gathered_rows_and_their_gradients():
    """Every dtype, rows that differ between tensors, and a gradient that reaches each row once."""
    strategy = strategy_for(3)
    numbers, twice = np.arange(5.0)[:, None] + 1, np.arange(10, dtype="int16")
    rows, double = [slice(0, 2), slice(2, 5), slice(5, 5)], [slice(0, 4), slice(4, 10), slice(10, 10)]

    def on_replica(x, y):
        batch = GlobalBatch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            every, others, flags, nothing = gather_rows((x, y, x > 2, None))
            share = batch.share(tf.reduce_prod(every))
        assert nothing is None and others.dtype == tf.int16 and flags.dtype == tf.bool
        return every, others, flags, tape.gradient(share, x), batch.first_row

    @tf.function
    def run():
        def part(values, parts):
            return strategy.experimental_distribute_values_from_function(
                lambda context: tf.constant(values[parts[context.replica_id_in_sync_group]])
            )

        return strategy.run(on_replica, args=(part(numbers, rows), part(twice, double)))

    results = [strategy.experimental_local_results(part) for part in run()]
    for replica in range(3):
        every, others, flags, gradient, first = (part[replica].numpy() for part in results)
        np.testing.assert_array_equal(every, numbers)
        np.testing.assert_array_equal(others, twice)
        np.testing.assert_array_equal(flags, numbers > 2)
        np.testing.assert_allclose(gradient, (120 / numbers)[rows[replica]], rtol=1e-15)
        assert first == rows[replica].start


def test_sparse_gradient_of_gathered_rows():
    """A lookup in the gathered rows has `IndexedSlices` as its gradient."""

    class Lookup(DistributedModel):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return ops.mean(ops.square(tf.gather(gather_rows(y_pred), [0, 1, 0])))

    def make():
        inputs = keras.Input((4,))
        model = Lookup(inputs, keras.layers.Dense(2)(inputs))
        model.compile("sgd")
        return model

    assert_trains_as_one(make, [3], (X, LABELS))


def test_saved_and_loaded():
    model = to_masks(lambda: GlobalBatchLoss(losses.Tversky(alpha=0.3)))()
    config = keras.saving.serialize_keras_object(model.loss)
    loaded = keras.saving.deserialize_keras_object(config)
    assert isinstance(loaded, GlobalBatchLoss)
    assert (loaded.name, loaded.reduction, loaded.loss.alpha) == ("tversky", "sum_over_batch_size", 0.3)
    function = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(GlobalBatchLoss(correlation)))
    assert function.name == "correlation" and function.loss.fn is correlation
