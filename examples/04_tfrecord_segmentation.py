"""Segmentation from TFRecords of raw bytes: by `fit`, and by a custom loop that gets the same numbers.

python examples/04_tfrecord_segmentation.py [--full]    (made-up pictures of 16 x 16 pixels, or of 512 x 512)
"""

import os
import sys
import tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # two parts of the CPU, whatever the machine has
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from keras.layers import Concatenate, Conv2D, MaxPooling2D, UpSampling2D

from mirrored_keras import Checkpoint, DistributedModel, GlobalBatch, mirrored_strategy, policies
from mirrored_keras.data import tfrecord_dataset, write_tfrecords

SIDE = 512 if "--full" in sys.argv else 16
ROWS, BATCH, STEPS, EPOCHS, SAVE_STEP, KEPT = 11, 4, 3, 12, 2, 5  # batches of 4, 4 and 3 rows
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def write(folder):
    for part, rows in (("train", ROWS), ("test", 6)):
        x = np.random.default_rng(rows).integers(0, 10000, (rows, SIDE, SIDE, 7), np.int32)
        write_tfrecords({"x": x, "y": np.uint8(x[..., 1] > 5000) + (x[..., 2] > 5000)}, f"{folder}/{part}", verbose=0)


def prepared(row):
    x = tf.cast(row["x"][..., 1:5], tf.float32)  # four of seven bands, scaled by picture
    low, high = tf.reduce_min(x), tf.reduce_max(x)
    return {"x": (x - low) / (high - low), "y": row["y"]}


def read(folder):
    options = {"global_batch_size": BATCH, "inputs": "x", "targets": "y", "map_rows": prepared}
    # every pass has another order: one iterator without end makes `fit` and loop count the passes alike
    train = tfrecord_dataset(f"{folder}/train", shuffle=True, repeat=True, **options)
    return train, tfrecord_dataset(f"{folder}/test", **options)


def u_net():
    keras.utils.set_random_seed(1)
    same = {"padding": "same", "activation": "relu"}
    inputs = keras.Input((SIDE, SIDE, 4))
    fine = Conv2D(8, 3, **same)(inputs)
    coarse = Conv2D(16, 3, **same)(MaxPooling2D()(fine))
    joined = Conv2D(8, 3, **same)(Concatenate()([fine, UpSampling2D()(coarse)]))
    model = DistributedModel(inputs, Conv2D(3, 1)(joined))
    model.compile(keras.optimizers.Adam(0.01), LOSS)
    return model


def train_by_hand(strategy, model, means, folder):
    files = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), f"{folder}/by_hand", max_to_keep=KEPT)

    def on_replica(training, x, y):
        batch = GlobalBatch(x)
        with tf.GradientTape() as tape:
            loss = batch.loss(LOSS, y, model(x, training=training))
            share = batch.share(loss)
        if training:
            gradients = tape.gradient(share, model.trainable_variables)
            batch.apply_gradients(model.optimizer, gradients, model.trainable_variables)
        means[0 if training else 1].update_state(loss, sample_weight=batch.rows)

    step = tf.function(lambda training, x, y: strategy.run(on_replica, (training, x, y)), autograph=False)
    train, test = map(strategy.experimental_distribute_dataset, read(folder))
    batches = iter(train)
    for epoch in range(1, EPOCHS + 1):
        for _ in range(STEPS):
            step(True, *next(batches))
        for batch in test:
            step(False, *batch)
        yield [float(mean.result()) for mean in means]
        for mean in means:
            mean.reset_state()
        if epoch % SAVE_STEP == 0:
            files.save()


def main():
    strategy, folder = mirrored_strategy(2), tempfile.mkdtemp()
    with strategy.scope():
        by_fit, by_hand, means = u_net(), u_net(), [keras.metrics.Mean(), keras.metrics.Mean()]
    write(folder)
    saving = Checkpoint(f"{folder}/by_fit", save=policies.every_epochs(SAVE_STEP), keep=policies.latest(KEPT))
    options = {"steps_per_epoch": STEPS, "shuffle": False, "callbacks": [saving], "verbose": 0}
    train, test = read(folder)
    logs = by_fit.fit(train, validation_data=test, epochs=EPOCHS, **options).history
    losses = np.transpose(list(train_by_hand(strategy, by_hand, means, folder)))
    print(f"by fit {logs['loss'][-1]:.6f}, by hand {losses[0, -1]:.6f}, saved {[s.epoch for s in saving.saved()]}")
    np.testing.assert_allclose(losses, [logs["loss"], logs["val_loss"]], rtol=1e-5)


if __name__ == "__main__":
    main()
