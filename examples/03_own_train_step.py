"""An own `train_step` in two calls of `GlobalBatch`, and the same step in a hand-written loop.

python examples/03_own_train_step.py

Both train on one replica and on four; the numbers agree. The loss divides by the sum of the sample weights, which
no replica knows by itself: `GlobalBatch.loss` does.
"""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # four parts of the CPU, whatever the machine has
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras import DistributedModel, GlobalBatch, mirrored_strategy

LOSS = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")


def update(model, x, y, weight):
    """Runs one step on this replica's rows; returns the batch and its loss, a mean over these rows."""
    batch = GlobalBatch(x)
    with tf.GradientTape() as tape:
        loss = batch.loss(LOSS, y, model(x, training=True), weight)
        share = batch.share(loss)  # call 1
    gradients = tape.gradient(share, model.trainable_variables)
    batch.apply_gradients(model.optimizer, gradients, model.trainable_variables)  # call 2
    return batch, loss


class OwnStep(DistributedModel):
    """Trains by `update` under `fit`."""

    def train_step(self, data):
        """Runs the step; a value that is no metric's is averaged over the rows of the global batch."""
        _, loss = update(self, *data)
        return {"loss": loss}


def train(strategy, by_hand):
    """Trains three epochs, by `fit` or by hand; returns the loss of the last batch and the weights."""
    keras.utils.set_random_seed(1)
    x, y, weight = (np.random.uniform(size=shape).astype("float32") for shape in ((38, 5), (38, 1), (38,)))
    batches = tf.data.Dataset.from_tensor_slices((x, y, weight)).batch(12)  # 12, 12, 12 and 2 rows
    with strategy.scope():
        inputs = keras.Input((5,))
        model = OwnStep(inputs, keras.layers.Dense(1)(keras.layers.Dense(8, activation="tanh")(inputs)))
        model.compile(keras.optimizers.Adam(0.01, global_clipnorm=0.5))
    if not by_hand:
        return model.fit(batches, epochs=3, shuffle=False, verbose=0).history["loss"][-1], model.get_weights()

    def on_replica(x, y, weight):
        batch, loss = update(model, x, y, weight)
        return batch.mean(loss)

    @tf.function
    def step(x, y, weight):
        return strategy.experimental_local_results(strategy.run(on_replica, args=(x, y, weight)))[0]

    for _ in range(3):
        for data in strategy.experimental_distribute_dataset(batches):
            loss = step(*data)
    return float(loss), model.get_weights()


def main():
    """Trains four times and compares."""
    four, one = mirrored_strategy(4), tf.distribute.get_strategy()  # one: no strategy
    reference = None
    for strategy, by_hand in ((one, False), (one, True), (four, False), (four, True)):
        loss, weights = train(strategy, by_hand)
        reference = reference or weights
        difference = max(float(np.max(np.abs(a - b))) for a, b in zip(weights, reference, strict=True))
        name = f"{strategy.num_replicas_in_sync} replica(s), {'by hand' if by_hand else 'fit'}"
        print(f"{name:22} last loss {loss:.6f}   largest weight difference {difference:.1e}")
        if not difference <= 1e-5:
            raise SystemExit("the trainings differ")


if __name__ == "__main__":
    main()
