"""The table of the README: one replica, four replicas, and four replicas of a stock `keras.Model`.

python examples/02_one_against_four.py
"""

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras import DistributedModel, mirrored_strategy

FOUR = mirrored_strategy(4, cross_device_ops=tf.distribute.ReductionToOneDevice())
ROWS, BATCH, EPOCHS = 333, 32, 3  # the last batch has 13 rows: 4 + 4 + 4 + 1


def data():
    """Rows that differ: later ones are noisier and weigh more."""
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 6)).astype("float32")
    noise = random.normal(size=(ROWS, 1)) * np.linspace(0.1, 3.0, ROWS)[:, None]
    y = (x @ random.normal(size=(6, 1)) + noise).astype("float32")
    weights = np.linspace(0.2, 3.0, ROWS).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(BATCH)


def train(base, strategy):
    with strategy.scope():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(8, activation="tanh")(inputs)
        model = base(inputs, keras.layers.Dense(1)(hidden))
        model.compile(
            keras.optimizers.Adam(0.02, global_clipnorm=1.0),
            loss=keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
        )
    history = model.fit(data(), epochs=EPOCHS, verbose=0)
    return model.get_weights(), history.history["loss"]


def main():
    one, _ = train(DistributedModel, tf.distribute.get_strategy())
    print(
        "| trained as | " + " | ".join(f"loss, epoch {e + 1}" for e in range(EPOCHS)) + " | largest weight difference |"
    )
    print("|---" * (EPOCHS + 2) + "|")
    differences = []
    for name, base, strategy in (
        ("1 replica", DistributedModel, tf.distribute.get_strategy()),
        ("4 replicas, `DistributedModel`", DistributedModel, FOUR),
        ("4 replicas, stock `keras.Model`", keras.Model, FOUR),
    ):
        weights, loss = train(base, strategy)
        differences.append(max(float(np.max(np.abs(a - b))) for a, b in zip(one, weights, strict=True)))
        print(f"| {name} | " + " | ".join(f"{v:.5f}" for v in loss) + f" | {differences[-1]:.1e} |")
    assert differences[0] == 0.0 and differences[1] < 1e-5, differences


if __name__ == "__main__":
    main()
