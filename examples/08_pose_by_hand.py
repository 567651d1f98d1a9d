"""The pose network of `07_pose_network.py` as a hand-written loop with `tf.train.Checkpoint`: the same numbers.

python examples/08_pose_by_hand.py

The loop is what people write without this package: every replica divides its sum by the global batch and the penalty on
weights by the number of replicas, and `strategy.reduce` adds up. It is right as long as every batch is full and the
optimizer does not clip. Prints its losses beside those of `fit`; then `load_weights` reads its checkpoint.
"""

import os
import pathlib
import runpy
import tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # two parts of the CPU, whatever the machine has
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras import DistributedModel, load_weights, mirrored_strategy

POSE = runpy.run_path(str(pathlib.Path(__file__).with_name("07_pose_network.py")))
BATCH, RATE, REPLICAS = POSE["BATCH"], POSE["RATE"], 2


def step_of(strategy, model, optimizer):
    """Returns the function that trains one global batch and returns its loss."""

    def on_replica(x, y):
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            sums = [tf.reduce_sum(POSE["masked_l2"](y[name], predicted[name])) for name in ("coarse", "fine")]
            share = tf.add_n(sums) / BATCH + (tf.add_n(model.losses) / REPLICAS if model.losses else 0.0)
        variables = model.trainable_variables
        optimizer.apply_gradients(
            zip(tape.gradient(share, variables), variables, strict=True)
        )  # sums over the replicas
        return share

    @tf.function
    def step(x, y):
        return strategy.reduce("SUM", strategy.run(on_replica, args=(x, y)), axis=None)

    return step


def train_epochs(strategy, model, rate, epochs, saved):
    """Trains, saves after every epoch, returns the mean loss of every epoch."""
    x, targets, _ = POSE["pictures"](POSE["ROWS"], seed=1)
    dataset = tf.data.Dataset.from_tensor_slices((x, targets)).batch(BATCH, drop_remainder=True)
    batches = strategy.experimental_distribute_dataset(dataset)
    with strategy.scope():
        optimizer = keras.optimizers.Adam(rate)
        optimizer.build(model.trainable_variables)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    files = tf.train.CheckpointManager(checkpoint, saved, max_to_keep=epochs)
    step, losses = step_of(strategy, model, optimizer), []
    for _ in range(epochs):
        losses.append(np.mean([step(*batch) for batch in batches]))
        files.save()
    return losses


def train_by_hand(strategy, folder):
    """Trains, and fine-tunes a new network from the last checkpoint; returns losses, errors and that checkpoint."""
    held_out, _, joints = POSE["pictures"](16, seed=2)
    with strategy.scope():
        first, second = POSE["network"](keras.Model), POSE["network"](keras.Model)
    losses = train_epochs(strategy, first, RATE, POSE["EPOCHS"], f"{folder}/first")
    saved = tf.train.latest_checkpoint(f"{folder}/first")
    with strategy.scope():
        tf.train.Checkpoint(model=second).restore(saved).expect_partial().assert_existing_objects_matched()
    for name in POSE["FROZEN"]:
        second.get_layer(name).trainable = False
    losses += train_epochs(strategy, second, RATE / 5, 2, f"{folder}/second")
    return losses, [POSE["error_in_pixels"](model, held_out, joints) for model in (first, second)], saved


def main():
    """Trains by hand and by `fit`, compares, and moves the checkpoint."""
    strategy = mirrored_strategy(REPLICAS)
    by_hand, errors, saved = train_by_hand(strategy, tempfile.mkdtemp())
    by_fit, fit_errors = POSE["train"](strategy, tempfile.mkdtemp())
    print("by hand", *(f"{loss:.4f}" for loss in by_hand))
    print("by fit ", *(f"{loss:.4f}" for loss in by_fit))
    np.testing.assert_allclose(by_hand, by_fit, rtol=1e-4)
    np.testing.assert_allclose(errors, fit_errors, atol=0.05)

    with strategy.scope():
        moved = POSE["network"](DistributedModel)
    load_weights(moved, saved)
    error = POSE["error_in_pixels"](moved, *POSE["pictures"](16, seed=2)[::2])
    print(f"joints off by {errors[0]:.2f} pixels before and {error:.2f} after the move of the checkpoint")
    np.testing.assert_allclose(error, errors[0], atol=0.05)


if __name__ == "__main__":
    main()
