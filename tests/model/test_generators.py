"""Generators: every batch once, short ones from the start again, and never an epoch without data."""

import itertools

import keras
import numpy as np
import pytest

from mirrored_keras import BatchError, DistributedModel, generators
from model.regression import assert_same_weights, made_under

RANDOM = np.random.default_rng(9)
BATCHES = [
    (RANDOM.normal(size=(rows, 3)).astype("float32"), RANDOM.normal(size=(rows, 1)).astype("float32"))
    for rows in (5, 4, 2)
]

pytestmark = pytest.mark.filterwarnings("ignore:`shuffle=True` was passed", "ignore:Your input ran out of data")


def linear():
    inputs = keras.Input((3,))
    model = DistributedModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def in_one_buffer():
    """Fills the same arrays again for every batch, as many loaders do."""
    x, y = np.zeros((5, 3), "float32"), np.zeros((5, 1), "float32")
    for features, targets in BATCHES:
        x[: len(features)], y[: len(targets)] = features, targets
        yield x[: len(features)], y[: len(targets)]


@pytest.mark.parametrize("replicas", [None, 2])
def test_too_short_for_its_epochs(replicas):
    expected = made_under(None, linear)
    for index in range(10):
        expected.train_on_batch(*BATCHES[index % 3])
    model = made_under(replicas, linear)
    with pytest.warns(UserWarning, match="ended after 3 batches and more are asked for"):
        model.fit((batch for batch in BATCHES), steps_per_epoch=5, epochs=2, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 10
    assert_same_weights(expected, model)


def test_kept_batches_are_copies():
    arguments = {"x": in_one_buffer(), "steps_per_epoch": 5}
    generators.readable_again(arguments)
    first = [features.copy() for features, _ in (next(arguments["x"]) for _ in range(3))]
    with pytest.warns(UserWarning, match="ended after 3 batches"):
        again = [next(arguments["x"])[0] for _ in range(3)]
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(two, one)


def test_too_large_to_keep(monkeypatch):
    monkeypatch.setattr(generators, "KEPT_BYTES", 100)
    model = made_under(2, linear)
    model.fit((batch for batch in BATCHES), steps_per_epoch=5, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 3


def test_validation_generator_serves_every_epoch():
    model = made_under(2, linear)
    endless = itertools.cycle(BATCHES)
    history = model.fit(
        *BATCHES[0], validation_data=(batch for batch in endless), validation_steps=3, epochs=4, verbose=0
    )
    expected = made_under(None, linear)
    received = expected.fit(
        *BATCHES[0], validation_data=tuple(map(np.concatenate, zip(*BATCHES, strict=True))), epochs=4, verbose=0
    )
    np.testing.assert_allclose(history.history["val_loss"], received.history["val_loss"], rtol=1e-5)


def test_validation_generator_that_does_not_end(monkeypatch):
    monkeypatch.setattr(generators, "KEPT_BYTES", 1000)
    model = made_under(2, linear)
    with pytest.raises(BatchError, match=r"Received: validation_steps=None, and more than 1000 bytes"):
        model.fit(*BATCHES[0], validation_data=(batch for batch in itertools.cycle(BATCHES)), verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 0


def test_several_epochs_without_steps():
    model = made_under(2, linear)
    with pytest.raises(BatchError) as caught:
        model.fit((batch for batch in BATCHES), epochs=2, verbose=0)
    assert str(caught.value) == (
        "A generator can be read once: after the first epoch nothing is left of it.\n"
        "Received: x=a generator, epochs=2, steps_per_epoch=None\n"
        "What to do: model.fit(..., epochs=2, steps_per_epoch=100), or "
        "tf.data.Dataset.from_generator(function, output_signature=...)"
    )
    assert int(model.optimizer.iterations.numpy()) == 0
