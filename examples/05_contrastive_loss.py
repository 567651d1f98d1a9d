"""A contrastive loss and Dice over the whole batch: losses that are no mean over rows, on four replicas.

python examples/05_contrastive_loss.py

InfoNCE tells the two halves of a digit from those of all other digits of the batch. A replica that knows only its own
rows has four times fewer digits to tell apart, which is another loss; `gather_rows` brings it all rows.
"""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # four parts of the CPU, whatever the machine has
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from mirrored_keras import DistributedModel, GlobalBatchLoss, gather_rows, mirrored_strategy
from mirrored_keras.data import digits_dataset

REPLICAS = 4


class Halves(DistributedModel):  # two towers: one for the upper, one for the lower half of a digit
    def __init__(self):
        super().__init__()
        self.upper, self.lower = keras.layers.Dense(8), keras.layers.Dense(8)

    def call(self, x):
        x = ops.reshape(x, (-1, 64))
        return ops.normalize(self.upper(x[:, :32])), ops.normalize(self.lower(x[:, 32:]))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        upper, lower = gather_rows(y_pred)
        scores = ops.matmul(upper, ops.transpose(lower)) / 0.1
        right = ops.arange(ops.shape(scores)[0])
        return ops.mean(ops.sparse_categorical_crossentropy(right, scores, from_logits=True))


def halves():
    """A model with its own loss: the right lower half among those of all digits of the global batch."""
    model = Halves()
    model.compile(keras.optimizers.Adam(0.01))
    return model


def ink():
    """A model that repaints the digit, scored by Dice over all pixels of the batch."""
    image = keras.Input((8, 8, 1))
    pixels = keras.layers.Dense(64, activation="sigmoid")(keras.layers.Dense(16)(keras.layers.Flatten()(image)))
    model = DistributedModel(image, pixels)
    model.compile(keras.optimizers.Adam(0.01), loss=GlobalBatchLoss(keras.losses.Dice()))
    return model


def train(make, dataset, strategy):
    """Trains two epochs; returns the losses and the weights."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = make()
    return model.fit(dataset, epochs=2, shuffle=False, verbose=0).history["loss"], model.get_weights()


def main():
    """Trains both models on one replica and on four, and compares."""
    four, one = mirrored_strategy(REPLICAS), tf.distribute.get_strategy()  # one: no strategy
    digits = digits_dataset("train", global_batch_size=101, shuffle_seed=1).take(5)
    repainted = digits.map(lambda x, y: (x, tf.reshape(x, (-1, 64))))
    for name, make, dataset in (("InfoNCE", halves, digits), ("Dice", ink, repainted)):
        losses, weights = train(make, dataset, one)
        several_losses, several_weights = train(make, dataset, four)
        difference = max(np.max(np.abs(a - b)) for a, b in zip(weights, several_weights, strict=True))
        print(f"{name:8} loss {losses[-1]:.6f} and {several_losses[-1]:.6f}, weights differ by {difference:.1e}")
        if not (difference <= 1e-4 and np.allclose(losses, several_losses, rtol=1e-5)):
            raise SystemExit("the replicas did not train as one")
    print(f"one replica = {REPLICAS} replicas")


if __name__ == "__main__":
    main()
