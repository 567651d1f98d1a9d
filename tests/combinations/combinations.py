"""What goes with what: strategies and features, each pair tried by a short training against one replica."""

import contextlib

import keras
import numpy as np
import tensorflow as tf

from devices import cpu_names, strategy_for
from mirrored_keras import DistributedModel, GlobalBatch, MirroredKerasError
from model.regression import RANDOM

ROWS, BATCH = 13, 6  # 6, 6 and 1 rows: with two and three replicas uneven, then empty
X = RANDOM.normal(size=(ROWS, 5)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) * np.linspace(0.2, 3.0, ROWS)[:, None]).astype("float32")
WEIGHTS = RANDOM.uniform(0.1, 3.0, ROWS).astype("float32")

LOSS = keras.losses.MeanSquaredError()

STRATEGIES = {
    "none": lambda: None,
    "`OneDeviceStrategy`": lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
    "`MirroredStrategy`, R = 2": lambda: strategy_for(2),
    "`MirroredStrategy`, R = 3": lambda: strategy_for(3),
    "`CentralStorageStrategy`": lambda: tf.distribute.experimental.CentralStorageStrategy(cpu_names(2), "CPU:0"),
}


def sgd(**options):
    return keras.optimizers.SGD(0.05, momentum=0.5, **options)


def scaled():
    """A scale with which no gradient of these rows overflows: an overflow depends on the pieces of a sum."""
    return keras.optimizers.LossScaleOptimizer(sgd(), initial_scale=256.0)


class OwnStep(DistributedModel):
    """A `train_step` of its own."""

    def train_step(self, data):
        x, y, weights = data
        batch = GlobalBatch(x)
        with tf.GradientTape() as tape:
            share = batch.share(batch.loss(LOSS, y, self(x, training=True), weights))
        batch.apply_gradients(self.optimizer, tape.gradient(share, self.trainable_variables), self.trainable_variables)
        return {"loss": share}


def looped(model):
    """A hand-written loop with `strategy.run`."""
    strategy, optimizer = model.distribute_strategy, model.optimizer

    def step(x, y, weights):
        batch = GlobalBatch(x)
        with tf.GradientTape() as tape:
            share = batch.share(batch.loss(LOSS, y, model(x, training=True), weights))
        batch.apply_gradients(optimizer, tape.gradient(share, model.trainable_variables), model.trainable_variables)

    run = tf.function(lambda *data: strategy.run(step, args=data))
    data = tf.data.Dataset.from_tensor_slices((X[:12], Y[:12], WEIGHTS[:12])).batch(BATCH)
    for batch in strategy.experimental_distribute_dataset(data):
        run(*batch)


def fitted(model):
    model.fit(X, Y, sample_weight=WEIGHTS, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)


#: feature -> options: of `compile`, and `base`, `layers`, `policy`, `run`
FEATURES = {
    "plain": {},
    "`clipnorm`": {"optimizer": lambda: sgd(clipnorm=0.3)},
    "`global_clipnorm`": {"optimizer": lambda: sgd(global_clipnorm=0.3)},
    "`weight_decay`": {"optimizer": lambda: sgd(weight_decay=0.1)},
    "`use_ema`, overwriting": {"optimizer": lambda: sgd(use_ema=True, ema_overwrite_frequency=2)},
    "`gradient_accumulation_steps`": {"optimizer": lambda: sgd(gradient_accumulation_steps=2)},
    "`LossScaleOptimizer`": {"optimizer": lambda: keras.optimizers.LossScaleOptimizer(sgd())},
    "`micro_batches`": {"micro_batches": 2},
    "`steps_per_execution`": {"steps_per_execution": 2},
    '`steps_per_execution="auto"`': {"steps_per_execution": "auto"},
    "`run_eagerly`": {"run_eagerly": True},
    "`jit_compile=True`": {"jit_compile": True},
    "float64": {"policy": "float64"},
    "`mixed_bfloat16`": {"policy": "mixed_bfloat16"},
    "`mixed_float16`": {"policy": "mixed_float16", "optimizer": scaled},
    "`BatchNormalization(synchronized=True)`": {
        "layers": lambda: [keras.layers.BatchNormalization(synchronized=True)],
    },
    '`Dropout`, `randomness="row"`': {"layers": lambda: [keras.layers.Dropout(0.4, seed=1)], "randomness": "row"},
    "own `train_step`": {"base": OwnStep},
    "hand-written loop": {"run": looped},
}
#: Largest differences, against the largest change of a weight; measured: at most a fifth of it
TOLERANCES = {"`mixed_bfloat16`": 0.05, "`mixed_float16`": 0.01}
TOLERANCE = 1e-5


def weights_after(feature, strategy):
    """Trains with a feature under a strategy; returns first and last weights."""
    options = dict(FEATURES[feature])
    base, layers = options.pop("base", DistributedModel), options.pop("layers", list)
    run, optimizer = options.pop("run", fitted), options.pop("optimizer", sgd)
    keras.config.set_dtype_policy(options.pop("policy", "float32"))
    try:
        with strategy.scope() if strategy else contextlib.nullcontext():
            keras.utils.set_random_seed(1)
            inputs = keras.Input((5,))
            hidden = keras.layers.Dense(4, activation="tanh")(inputs)
            for layer in layers():
                hidden = layer(hidden)
            model = base(inputs, keras.layers.Dense(1)(hidden))
            model.compile(optimizer(), "mse", **options)
        before = model.get_weights()
        run(model)
    finally:
        keras.config.set_dtype_policy("float32")
    return before, model.get_weights()


def outcome(feature, strategy, expected):
    """Returns "equal", "refused" or what else became of a training, against the weights of one replica."""
    try:
        before, after = weights_after(feature, strategy)
    except MirroredKerasError:
        return "refused"
    pairs = list(zip(before, after, expected, strict=True))
    change = max(float(np.abs(a - b).max()) for b, a, _ in pairs)
    error = max(float(np.abs(a - e).max()) for _, a, e in pairs)
    assert change > 1e-3, f"{feature} trained nothing"
    return "equal" if error <= TOLERANCES.get(feature, TOLERANCE) * change else f"off by {error / change:.1e}"


def table():
    """Returns the table as Markdown, one line per feature."""
    lines = ["| | " + " | ".join(STRATEGIES) + " |", "|---" * (1 + len(STRATEGIES)) + "|"]
    for feature in FEATURES:
        _, expected = weights_after(feature, None)
        cells = [
            "the reference" if name == "none" else outcome(feature, make(), expected)
            for name, make in STRATEGIES.items()
        ]
        lines.append(f"| {feature} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
