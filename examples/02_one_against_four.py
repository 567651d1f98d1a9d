"""Writes the table of the README: one replica against four, `DistributedModel` and `keras.Model`.

    python examples/02_one_against_four.py

The same network, first weights, batches and optimizer three times. 1,433 digits in batches of 100 leave a last
batch of 33 rows, which four replicas share as 9, 9, 9 and 6; gradients are clipped by their global norm.
"""

import contextlib
import os

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # replicas on the CPU, whatever the machine has
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from mirrored_keras import DistributedModel, mirrored_strategy
from mirrored_keras.data import digits_dataset

EPOCHS = 3


def train(model_class, strategy=None):
    """Trains one network and returns the loss of each epoch and the weights."""
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        image = keras.Input((8, 8, 1))
        x = keras.layers.Conv2D(16, 3, activation="tanh")(image)
        model = model_class(image, keras.layers.Dense(10)(keras.layers.Flatten()(x)))
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    dataset = digits_dataset("train", global_batch_size=100, shuffle_seed=1)
    history = model.fit(dataset, epochs=EPOCHS, shuffle=False, verbose=0)
    return history.history["loss"], model.get_weights()


def largest_difference(weights, others):
    """Returns the largest distance of a weight from the same weight of another training."""
    return max(float(np.max(np.abs(a - b))) for a, b in zip(weights, others, strict=True))


def main():
    """Trains three times and prints a Markdown table."""
    four = mirrored_strategy(4)
    runs = {
        "`DistributedModel`, 1 replica": train(DistributedModel),
        "`DistributedModel`, 4 replicas": train(DistributedModel, four),
        "`keras.Model`, 4 replicas": train(keras.Model, four),
    }
    _, reference = next(iter(runs.values()))
    rows = [["", *runs], ["---", *["---:"] * len(runs)]]
    for epoch in range(EPOCHS):
        rows.append([f"loss, epoch {epoch + 1}", *(f"{losses[epoch]:.6f}" for losses, _ in runs.values())])
    differences = [largest_difference(weights, reference) for _, weights in runs.values()]
    rows.append(["largest weight difference", *(f"{difference:.1e}" for difference in differences)])
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
