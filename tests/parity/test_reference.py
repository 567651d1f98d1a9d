"""The oracle itself, against numbers worked out by hand and against NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tolerances
from mirrored_keras.parity.reference import Objective, clip, fraction, train_reference

VALUES = [[1.0, 2.0], [3.0, 10.0]]
WEIGHT = [[2.0, 1.0], [0.0, 0.5]]
MASK = [[True, False], [True, True]]

FRACTIONS = [
    # weight, mask, reduction, n, d
    (None, None, "sum_over_batch_size", 16.0, 4.0),
    (None, None, "mean_with_sample_weight", 16.0, 4.0),
    (None, None, "sum", 16.0, 1.0),
    (WEIGHT, None, "sum_over_batch_size", 9.0, 4.0),  # 2 + 2 + 0 + 5
    (WEIGHT, None, "mean_with_sample_weight", 9.0, 3.5),
    (WEIGHT, None, "sum", 9.0, 1.0),
    (None, MASK, "mean", 14.0, 3.0),  # 1 + 3 + 10
    (None, MASK, "mean_with_sample_weight", 14.0, 3.0),
    (WEIGHT, MASK, "mean", 7.0, 3.0),  # 2 + 0 + 5 over unmasked elements
    (WEIGHT, MASK, "mean_with_sample_weight", 7.0, 2.5),
]


@pytest.mark.parametrize(("weight", "mask", "reduction", "n", "d"), FRACTIONS)
def test_fraction(weight, mask, reduction, n, d):
    weight = None if weight is None else tf.constant(weight)
    mask = None if mask is None else tf.constant(mask)
    numerator, denominator = fraction(tf.constant(VALUES), weight, mask, reduction)
    assert (float(numerator), float(denominator)) == (n, d)


def test_fraction_of_an_unreduced_loss_is_a_vector():
    numerator, denominator = fraction(tf.constant([1.0, 4.0]), tf.constant([[3.0], [0.5]]), None, None)
    assert numerator.numpy().tolist() == [3.0, 2.0]
    assert float(denominator) == 1.0


def test_fraction_of_one_value_for_all_rows():
    numerator, denominator = fraction(tf.constant(4.0), None, None, "mean")
    assert (float(numerator), float(denominator)) == (4.0, 1.0)


def test_clip():
    gradients = [tf.constant([3.0, -4.0]), None, tf.constant([[12.0]])]
    as_lists = [g if g is None else g.numpy().tolist() for g in clip(gradients, clipvalue=3.5)]
    assert as_lists == [[3.0, -3.5], None, [[3.5]]]
    first, none, second = clip(gradients, clipnorm=6.0)  # norms 5 and 12
    assert first.numpy().tolist() == [3.0, -4.0]
    assert none is None
    assert second.numpy().tolist() == [[6.0]]
    first, _, second = clip(gradients, global_clipnorm=6.5)  # norm 13
    assert first.numpy().tolist() == [1.5, -2.0]
    assert second.numpy().tolist() == [[6.0]]


@pytest.mark.usefixtures("float64")
def test_two_steps_of_a_linear_model_by_hand():
    """Minimises mean(weight * (w x - y)²): its gradient is 2 mean(weight * (w x - y) x)."""
    x, y, weight = np.array([[1.0], [2.0], [4.0]]), np.array([[3.0], [1.0], [0.0]]), np.array([1.0, 0.5, 2.0])
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.array([[0.5]])])
    batches = [(x[:2], y[:2], weight[:2]), (x[2:], y[2:], weight[2:])]
    objective = Objective(losses=[keras.losses.MeanSquaredError()])
    result = train_reference(model, batches, objective, keras.optimizers.SGD(0.01))

    first = (1 * (0.5 - 3) ** 2 + 0.5 * (1 - 1) ** 2) / 2
    w = 0.5 - 0.01 * 2 * (1 * (0.5 - 3) * 1 + 0.5 * (1 - 1) * 2) / 2
    second = 2 * (4 * w) ** 2
    w -= 0.01 * 2 * 2 * (4 * w) * 4
    assert result.weights[0].item() == pytest.approx(w, rel=tolerances.FLOAT64)
    assert result.batch_losses == pytest.approx([first, second], rel=tolerances.FLOAT64)
    assert result.epoch_losses == pytest.approx([(2 * first + second) / 3], rel=tolerances.FLOAT64)


@pytest.mark.usefixtures("float64")
def test_duplicates_of_a_sparse_gradient_are_summed_before_they_are_squared():
    """Adagrad from an accumulator of 0: a first step of exactly the learning rate per touched entry."""
    model = keras.Sequential([keras.Input((3,), dtype="int32"), keras.layers.Embedding(4, 1)])
    start = model.get_weights()[0]
    objective = Objective(extra=lambda x, y, y_pred: tf.reduce_sum(y_pred))
    optimizer = keras.optimizers.Adagrad(0.25, initial_accumulator_value=0.0, epsilon=1e-30)
    result = train_reference(model, [(np.array([[1, 1, 3]], "int32"),)], objective, optimizer)
    moved = (start - result.weights[0]).ravel()
    assert moved == pytest.approx([0, 0.25, 0, 0.25], rel=tolerances.FLOAT64)
