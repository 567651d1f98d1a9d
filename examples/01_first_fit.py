"""The smallest training script, on real digits, with one replica and with two: the same numbers.

python examples/01_first_fit.py
"""

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras import DistributedModel, mirrored_strategy
from mirrored_keras.data import digits_dataset

# Two replicas: GPUs where there are two, else logical CPU devices. One device sums, so that two strategies
# (one and two replicas) can live in one process.
REPLICAS = mirrored_strategy(2, cross_device_ops=tf.distribute.ReductionToOneDevice())


def train(strategy):
    with strategy.scope():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((8, 8, 1))
        x = keras.layers.Conv2D(8, 3, activation="relu")(inputs)
        x = keras.layers.Flatten()(x)
        model = DistributedModel(inputs, keras.layers.Dense(10)(x))
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    # 1,437 rows in batches of 101: every batch is uneven on two replicas, and the last one is short
    history = model.fit(digits_dataset("train", global_batch_size=101), epochs=2, verbose=2)
    return model, history.history["loss"]


if __name__ == "__main__":
    one, one_loss = train(tf.distribute.get_strategy())
    two, two_loss = train(REPLICAS)
    difference = max(np.max(np.abs(a - b)) for a, b in zip(one.get_weights(), two.get_weights(), strict=True))
    print("loss, one replica: ", one_loss)
    print("loss, two replicas:", two_loss)
    print(f"largest difference of a weight: {difference:.1e}")
    np.testing.assert_allclose(one_loss, two_loss, rtol=1e-4)
    assert difference < 1e-4, difference
    print("one replica = 2 replicas")
