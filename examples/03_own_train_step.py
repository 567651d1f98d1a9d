"""An own `train_step`, and the same step in a loop without `fit`: two calls make both exact.

python examples/03_own_train_step.py
"""

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras import DistributedModel, GlobalBatch, mirrored_strategy

REPLICAS = mirrored_strategy(3, cross_device_ops=tf.distribute.ReductionToOneDevice())
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(50, 4)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) * np.linspace(0.2, 3.0, 50)[:, None]).astype("float32")
DATASET = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)  # 16, 16, 16 and 2 rows


class OwnStep(DistributedModel):
    def train_step(self, data):
        x, y = data
        batch = GlobalBatch(x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(y - self(x, training=True)))  # a mean over this replica's rows
            share = batch.share(loss)  # call 1: its share of the global batch
        gradients = tape.gradient(share, self.trainable_variables)
        batch.apply_gradients(self.optimizer, gradients, self.trainable_variables)  # call 2: sum once, update
        return {"loss": loss}


def make(strategy):
    with strategy.scope():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((4,))
        model = OwnStep(inputs, keras.layers.Dense(1)(keras.layers.Dense(5, activation="tanh")(inputs)))
        model.compile(keras.optimizers.Adam(0.05, clipnorm=0.5))
    return model


def fit(strategy):
    model = make(strategy)
    model.fit(DATASET, epochs=2, verbose=0)
    return model.get_weights()


def loop(strategy):
    model = make(strategy)

    @tf.function
    def step(x, y):
        return strategy.run(model.train_step, args=((x, y),))

    for _ in range(2):
        for x, y in strategy.experimental_distribute_dataset(DATASET):
            step(x, y)
    return model.get_weights()


if __name__ == "__main__":
    reference = fit(tf.distribute.get_strategy())
    for name, weights in {
        "fit, 3 replicas": fit(REPLICAS),
        "loop, 3 replicas": loop(REPLICAS),
        "loop, no strategy": loop(tf.distribute.get_strategy()),
    }.items():
        difference = max(float(np.max(np.abs(a - b))) for a, b in zip(reference, weights, strict=True))
        print(f"{name}: largest difference from fit on one replica {difference:.1e}")
        assert difference < 1e-5, difference
