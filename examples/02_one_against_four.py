"""Prints the table of the README: one replica, four replicas, and four replicas of a stock `keras.Model`.

python examples/02_one_against_four.py

The same network, first weights, batches and optimizer three times. 1,433 real digits in batches of 100 leave a last
batch of 33 rows, which four replicas share as 9, 8, 8 and 8; gradients are clipped by their global norm.
"""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # four parts of the CPU, whatever the machine has
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras import DistributedModel, mirrored_strategy
from mirrored_keras.data import digits_dataset

EPOCHS = 3
FOUR = mirrored_strategy(4)
ONE = tf.distribute.get_strategy()  # no strategy


def train(model_class, strategy):
    """Trains one network; returns its weights and the loss of each epoch."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        image = keras.Input((8, 8, 1))
        x = keras.layers.Conv2D(16, 3, activation="tanh")(image)
        model = model_class(image, keras.layers.Dense(10)(keras.layers.Flatten()(x)))
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    dataset = digits_dataset("train", global_batch_size=100, shuffle_seed=1)
    history = model.fit(dataset, epochs=EPOCHS, shuffle=False, verbose=0)
    return model.get_weights(), history.history["loss"]


def main():
    """Trains three times and prints a Markdown table."""
    epochs = " | ".join(f"loss, epoch {epoch + 1}" for epoch in range(EPOCHS))
    print(f"| trained as | {epochs} | largest weight difference |")
    print("|---" * (EPOCHS + 2) + "|")
    differences, reference = [], None
    for name, model_class, strategy in (
        ("1 replica", DistributedModel, ONE),
        ("4 replicas, `DistributedModel`", DistributedModel, FOUR),
        ("4 replicas, stock `keras.Model`", keras.Model, FOUR),
    ):
        weights, losses = train(model_class, strategy)
        reference = reference or weights
        differences.append(max(float(np.max(np.abs(a - b))) for a, b in zip(weights, reference, strict=True)))
        print(f"| {name} | " + " | ".join(f"{loss:.5f}" for loss in losses) + f" | {differences[-1]:.1e} |")
    if not differences[1] <= 1e-5:
        raise SystemExit("the replicas did not train as one")


if __name__ == "__main__":
    main()
