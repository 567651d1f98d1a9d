"""Losses over the whole batch: what is said where one is missing or cannot work."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from devices import strategy_for
from mirrored_keras import BatchError, DistributedModel, GlobalBatchLoss, SetupError, gather_rows
from model.regression import made_under

X = np.linspace(-1, 1, 20).reshape(5, 4)


def compiled(replicas, loss):
    def make():
        inputs = keras.Input((4,))
        model = DistributedModel(inputs, keras.layers.Dense(4, activation="sigmoid")(inputs))
        model.compile("sgd", loss=loss)
        return model

    return made_under(replicas, make)


def fit(model):
    model.fit(X, X > 0, epochs=2, batch_size=3, verbose=0)


def warned(run):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        run()
    return [str(warning.message) for warning in caught]


WARNING = (
    "`dice` is one score for all rows of a batch, no mean over rows: each of several replicas computes it from its "
    "own rows, so the result depends on their number.\n"
    "What to do: compile(loss=mirrored_keras.GlobalBatchLoss(keras.losses.Dice(...)))"
)


@pytest.mark.parametrize("loss", ["dice", keras.losses.Dice(), keras.losses.Dice(axis=(0, 1)), keras.losses.dice])
def test_dice_of_each_replica_warns_once(loss):
    model = compiled(2, loss)
    assert warned(lambda: fit(model)) == [WARNING]


@pytest.mark.parametrize("loss", ["tversky", "circle"])
def test_others_warn(loss):
    model = compiled(2, loss)
    y = np.arange(5)[:, None] if loss == "circle" else X > 0
    (text,) = warned(lambda: model.evaluate(X, y, verbose=0))
    assert text == WARNING.replace("dice", loss).replace("Dice", loss.title())


def test_an_axis_that_takes_in_the_rows_warns():
    (text,) = warned(lambda: fit(compiled(2, keras.losses.CosineSimilarity(axis=0))))
    assert text == WARNING.replace("dice", "cosine_similarity").replace("Dice", "CosineSimilarity")


@pytest.mark.parametrize(
    ("replicas", "loss"), [(1, "dice"), (None, "dice"), (2, keras.losses.Dice(axis=1)), (2, GlobalBatchLoss("dice"))]
)
def test_no_warning_where_all_is_well(replicas, loss):
    fit(compiled(replicas, loss))  # warnings are errors here


def test_no_loss():
    with pytest.raises(SetupError) as caught:
        GlobalBatchLoss(3)
    assert str(caught.value) == (
        "`GlobalBatchLoss` takes a loss object, a loss function or the name of one.\n"
        "Received: loss=3\n"
        "What to do: GlobalBatchLoss(keras.losses.Dice())"
    )


def test_unreduced_without_a_value_per_row():
    with pytest.raises(SetupError) as caught:
        fit(compiled(2, GlobalBatchLoss(keras.losses.Dice(axis=0, reduction=None))))
    assert str(caught.value).startswith(
        "Without a reduction, a loss over the whole batch needs a value per row.\n"
        "Received: loss='dice', values of shape (4,)\n"
        'What to do: GlobalBatchLoss(keras.losses.Dice(axis=0, reduction="sum"))'
    )


@pytest.mark.parametrize("value", [tf.constant(["a", "b"]), tf.ragged.constant([[1], [2, 3]]), tf.constant(1.0)])
def test_what_cannot_be_gathered(value):
    with pytest.raises(BatchError) as caught:
        strategy_for(2).run(lambda: gather_rows(value))
    assert str(caught.value).startswith(
        "Only dense tensors of numbers, with rows, can be gathered from all replicas.\nReceived: values=<tf."
    )
