"""A first `fit` on four replicas: real digits, a short last batch, and a check against one replica.

python examples/01_first_fit.py

Runs in seconds: the four replicas are four parts of the CPU. On a machine with several GPUs take
`mirrored_strategy()` instead, which uses all of them, and leave the first lines out.
"""

import contextlib
import os

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # four parts of the CPU, whatever the machine has
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from mirrored_keras import DistributedModel, mirrored_strategy
from mirrored_keras.data import digits_dataset

REPLICAS = 4
BATCH = 100  # rows of the global batch, over all replicas; 1,433 rows leave 33 for the last one
LARGEST_DIFFERENCE = 1e-5  # what rounding may do here; a wrong normalisation shows above 1e-3


def train(strategy=None):
    """Trains a small network for three epochs, under a strategy or on one replica."""
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        image = keras.Input((8, 8, 1))
        x = keras.layers.Conv2D(16, 3, activation="tanh")(image)
        digit = keras.layers.Dense(10, activation="softmax")(keras.layers.Flatten()(x))
        model = DistributedModel(image, digit)
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
        )
    dataset = digits_dataset("train", global_batch_size=BATCH, shuffle_seed=1)
    history = model.fit(dataset, epochs=3, shuffle=False, verbose=2 if strategy else 0)
    return model, history.history


def main():
    """Trains on four replicas, then on one, and compares."""
    strategy = mirrored_strategy(REPLICAS)
    model, history = train(strategy)
    held_out = model.evaluate(digits_dataset("test", global_batch_size=BATCH), verbose=0, return_dict=True)
    print(f"held-out accuracy: {held_out['accuracy']:.2%}")

    one_model, one_history = train()
    pairs = zip(one_model.get_weights(), model.get_weights(), strict=True)
    weights = max(float(np.max(np.abs(one - several))) for one, several in pairs)
    logs = max(float(np.max(np.abs(np.subtract(one_history[name], history[name])))) for name in history)
    print(f"largest difference from one replica: weights {weights:.1e}, logs {logs:.1e}")
    if not (weights <= LARGEST_DIFFERENCE and logs <= LARGEST_DIFFERENCE):
        raise SystemExit("the replicas did not train as one")
    print(f"one replica = {REPLICAS} replicas")


if __name__ == "__main__":
    main()
