"""The models and data that are saved and restored: every state that training has, and uneven batches."""

import contextlib

import keras
import numpy as np

from devices import strategy_for
from mirrored_keras import DistributedModel, SyncBatchNormalization

FORMATS = ("model.keras", "model.h5", "model.weights.h5")
RNG = np.random.default_rng(11)
X = RNG.normal(size=(18, 4)).astype("float32")  # five batches of four rows, the last of two
Y = np.stack([X.sum(1), X[:, 0] * X[:, 1]], axis=1).astype("float32")
WEIGHTS = RNG.uniform(0.2, 2, size=18).astype("float32")

OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.9), momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(0.02, global_clipnorm=1.0),
    "AdamW with averages": lambda: keras.optimizers.AdamW(0.02, weight_decay=0.01, use_ema=True, ema_momentum=0.9),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.02), initial_scale=64.0, dynamic_growth_steps=3
    ),
    "accumulation": lambda: keras.optimizers.Adam(0.02, gradient_accumulation_steps=3),
}


def scope_of(replicas):
    strategy = strategy_for(replicas)
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def make_model(replicas, optimizer="Adam", *, base=DistributedModel, compiled=True, **options):
    """A model with batch statistics and dropout by row, so that every replica count has the same numbers."""
    with scope_of(replicas):
        keras.utils.set_random_seed(3)
        inputs = keras.Input((4,), name="features")
        x = keras.layers.Dense(6, activation="tanh", name="hidden")(inputs)
        x = SyncBatchNormalization(name="statistics")(x) if base is DistributedModel else x
        x = keras.layers.Dropout(0.3, seed=5, name="dropout")(x)
        model = base(inputs, keras.layers.Dense(2, name="head")(x))
        if compiled:
            if base is DistributedModel:
                options = {"randomness": "row", **options}
            model.compile(OPTIMIZERS[optimizer](), **{"loss": "mse", "metrics": ["mae"], **options})
    return model


def five_steps(model):
    return model.fit(X, Y, sample_weight=WEIGHTS, batch_size=4, shuffle=False, epochs=1, verbose=0)


def state_of(model):
    """All numbers that training goes on from."""
    variables = [*model.weights, *model.optimizer.variables]
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


def same_state(first, second):
    """Whether two states are equal to the bit."""
    return len(first) == len(second) and all(
        a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(first, second, strict=True)
    )


def relative_difference(first, second, start):
    """Largest distance of two models' weights, relative to the largest way from where both started."""
    ends = [first.get_weights(), second.get_weights()]
    distances = [float(np.max(np.abs(a - b))) for a, b in zip(*ends, strict=True)]
    ways = [float(np.max(np.abs(a - b))) for a, b in zip(ends[1], start, strict=True)]
    return max(distances) / max(ways)
