"""A range test finds where the loss falls and where it runs away, and leaves no trace in the model."""

import importlib.util

import keras
import numpy as np
import pytest

from mirrored_keras import DistributedModel, SetupError
from mirrored_keras.callbacks import RangeTest, learning_rate_range_test
from model.regression import X, Y, dataset, made_under, perceptron


def with_everything(optimizer):
    inputs = keras.Input((5,))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(4, activation="tanh")(inputs))
    model = DistributedModel(inputs, keras.layers.Dense(1)(keras.layers.Dropout(0.3)(hidden)))
    model.compile(optimizer(), "mse", metrics=["mae"])
    return model


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01, use_ema=True),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01, momentum=0.9)),
}


def state(model):
    return [v.numpy() for v in (*model.variables, *model.optimizer.variables)], model.get_random_state()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("replicas", [None, 3])
def test_it_leaves_no_trace(replicas, optimizer):
    def fitted(test):
        model = made_under(replicas, lambda: with_everything(OPTIMIZERS[optimizer]))
        model.fit(dataset(), verbose=0, shuffle=False)
        before = state(model)
        if test:
            found = learning_rate_range_test(model, dataset(), steps=8, smallest=1e-4, largest=1.0)
            assert len(found.rates) == len(found.losses) <= 8
            after = state(model)
            assert before[1] == after[1]
            for a, b in zip(before[0], after[0], strict=True):
                np.testing.assert_array_equal(a, b)
        model.fit(dataset(), verbose=0, shuffle=False)
        return model.get_weights()

    for a, b in zip(fitted(False), fitted(True), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_model_that_has_not_been_trained_yet():
    model = made_under(2, lambda: perceptron(DistributedModel))
    before = model.get_weights()
    learning_rate_range_test(model, (X, Y), batch_size=7, steps=4, largest=0.1)
    assert int(keras.ops.convert_to_numpy(model.optimizer.iterations)) == 0
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_replicas_find_what_one_replica_finds():
    one, many = (
        learning_rate_range_test(
            made_under(replicas, lambda: perceptron(DistributedModel)), dataset(), steps=12, smallest=1e-4, largest=0.1
        )
        for replicas in (None, 3)
    )
    np.testing.assert_allclose(one.losses, many.losses, rtol=1e-5)
    assert one.suggestion == many.suggestion


def test_it_stops_where_the_loss_runs_away():
    model = made_under(2, lambda: perceptron(DistributedModel))
    found = learning_rate_range_test(model, (X, Y), batch_size=19, steps=40, smallest=1e-4, largest=1e8)
    assert found.diverged and 5 < len(found.rates) < 40
    assert found.rates[0] == pytest.approx(1e-4) and found.rates == tuple(sorted(found.rates))
    assert all(np.isfinite(model.get_weights()[0].ravel()))
    settled = learning_rate_range_test(model, (X, Y), batch_size=19, steps=10, largest=1e-3)
    assert not settled.diverged and settled.rates[-1] == pytest.approx(1e-3)


def test_the_model_comes_back_after_an_error():
    model = made_under(2, lambda: perceptron(DistributedModel))
    before = model.get_weights()

    def fails(*_, **__):
        model.layers[-1].bias.assign([3.0])
        raise KeyboardInterrupt

    model.train_on_batch = fails
    with pytest.raises(KeyboardInterrupt):
        learning_rate_range_test(model, (X, Y), steps=3)
    np.testing.assert_array_equal(model.get_weights()[-1], before[-1])


def test_the_suggestion_is_where_the_loss_falls_fastest():
    smoothed = (5.0, 4.9, 3.0, 1.0, 0.9, 9.0)
    rates = tuple(float(rate) for rate in np.geomspace(1e-3, 1e2, 6))
    assert RangeTest(rates, smoothed, smoothed, True).suggestion == rates[2]


def test_a_schedule_and_a_wrong_range_are_refused():
    decays = keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10))
    with pytest.raises(SetupError, match="whose learning rate is a number"):
        learning_rate_range_test(perceptron(DistributedModel, optimizer=decays), (X, Y))
    with pytest.raises(SetupError, match="from a smaller to a larger"):
        learning_rate_range_test(perceptron(DistributedModel), (X, Y), smallest=1.0, largest=0.1)


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="the picture needs matplotlib")
def test_the_picture(tmp_path):
    RangeTest((1e-3, 1e-2), (2.0, 1.0), (2.0, 1.5), False).plot(tmp_path / "range.png")
    assert (tmp_path / "range.png").read_bytes().startswith(b"\x89PNG")
