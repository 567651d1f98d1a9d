"""Half precision: R replicas against one, within what another order of summation changes on one replica."""

import contextlib

import keras
import numpy as np
import pytest

from devices import strategy_for
from mirrored_keras import DistributedModel

pytestmark = pytest.mark.table(every=3)

ROWS, BATCH = 29, 8  # a last batch of 5 rows
# Largest ratio measured in this file: 1.8.
TIMES_ANOTHER_ORDER = 4

OPTIMIZERS = {
    "SGD, clipping, accumulation, EMA": lambda: keras.optimizers.SGD(
        0.1, global_clipnorm=0.5, gradient_accumulation_steps=2, use_ema=True, ema_momentum=0.7
    ),
    "AdamW": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, epsilon=1e-2),
}


@pytest.fixture
def policy(request):
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy("float32")


def rows(overflow_in=None):
    random = np.random.default_rng(3)
    x = random.normal(size=(ROWS, 6)).astype("float32")
    y = random.normal(size=(ROWS, 1)).astype("float32")
    if overflow_in is not None:
        x[overflow_in] = 6e4  # its gradient times the loss scale is no number of float16
    return x, y, random.random(ROWS).astype("float32")


def train(replicas, optimizer, *, activation="tanh", overflow_in=None, **options):
    with strategy_for(replicas).scope() if replicas else contextlib.nullcontext():
        keras.utils.set_random_seed(4)
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(8, activation=activation)(inputs)
        model = DistributedModel(inputs, keras.layers.Dense(1, dtype="float32")(hidden))
        model.compile(optimizer(), "mse", metrics=["mae"], **options)
    start = model.get_weights()
    x, y, weights = rows(overflow_in)
    history = model.fit(x, y, sample_weight=weights, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    distance = [a - b for a, b in zip(model.get_weights(), start, strict=True)]
    return model, np.concatenate([part.ravel() for part in distance]), history.history


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"], indirect=True)
@pytest.mark.parametrize("options", [{}, {"micro_batches": 3, "steps_per_execution": 2}], ids=["plain", "pieces"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_replicas_are_one(policy, name, options):
    _, one, history = train(None, OPTIMIZERS[name])
    # gradients of 4 pieces are rounded to half precision each, and then added
    _, in_pieces, _ = train(None, OPTIMIZERS[name], micro_batches=4)
    allowed = TIMES_ANOTHER_ORDER * np.max(np.abs(one - in_pieces))
    assert 0 < allowed < 0.05 * np.max(np.abs(one)), "the measure itself says nothing"
    for replicas in (2, 3):
        model, many, received = train(replicas, OPTIMIZERS[name], **options)
        assert np.max(np.abs(one - many)) <= allowed
        np.testing.assert_allclose(received["loss"], history["loss"], rtol=2e-2)
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) == (policy == "mixed_float16")


@pytest.mark.parametrize("policy", ["mixed_float16"], indirect=True)
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("row", [0, BATCH - 1, ROWS - 1], ids=["first replica", "last replica", "last batch"])
def test_overflow_anywhere_skips_everywhere(policy, replicas, row):
    """One batch in four overflows, in both epochs: its update is skipped and the scale halved, once."""

    def scaled():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01, momentum=0.5), initial_scale=2.0**10)

    one, weights, _ = train(None, scaled, activation="relu", overflow_in=row)
    many, received, _ = train(replicas, scaled, activation="relu", overflow_in=row)
    assert int(one.optimizer.inner_optimizer.iterations.numpy()) == 6
    assert int(many.optimizer.inner_optimizer.iterations.numpy()) == 6
    assert float(many.optimizer.dynamic_scale.numpy()) == float(one.optimizer.dynamic_scale.numpy()) == 2.0**8
    assert np.all(np.isfinite(received))
    np.testing.assert_allclose(received, weights, rtol=0, atol=1e-3 * np.max(np.abs(weights)))
