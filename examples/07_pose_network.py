"""A pose network with two resolutions: heatmaps, masks, an h5 file per epoch, fine-tuning from one of them.

python examples/07_pose_network.py

Made-up pictures with three coloured joints each; one heatmap per joint, on an 8 x 8 and on a 16 x 16 grid; a mask is 0
where nobody looked. The loss is the masked l2 loss, summed and divided by the global batch. Prints loss and mean error
of the joints in pixels, on one replica and on two, and the same after fine-tuning from the file of the last epoch.
"""

import os
import tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # two parts of the CPU, whatever the machine has
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from mirrored_keras import DistributedModel, load_model, mirrored_strategy

SIDE, JOINTS, ROWS, BATCH, EPOCHS, RATE = 32, 3, 48, 8, 8, 0.005
FROZEN = ("stem", "coarse_features", "coarse")  # while fine-tuning


def dots(joints, side, width):
    """Draws a smooth dot per joint: rows x side x side x joints."""
    distance = (np.arange(side) + 0.5) / side - joints[..., None]
    down, across = np.moveaxis(np.exp(-(distance**2) / (2 * width**2)), 2, 0)
    return np.einsum("rjd,rja->rdaj", down, across)


def pictures(rows, seed):
    """Returns pictures; a dict of targets, heatmaps with the mask as last channel; and the joints, in 0 to 1."""
    random = np.random.default_rng(seed)
    joints = random.uniform(0.15, 0.85, (rows, JOINTS, 2))
    x = dots(joints, SIDE, 0.04) + 0.1 * random.normal(size=(rows, SIDE, SIDE, JOINTS))
    unseen, targets = random.integers(0, 2, rows) * random.uniform(0, 0.5, rows), {}  # the left part of some pictures
    for name, side in (("coarse", 8), ("fine", 16)):
        seen = np.broadcast_to(np.arange(side) >= (unseen * side)[:, None, None], (rows, side, side))
        targets[name] = np.concatenate([dots(joints, side, 0.08), seen[..., None]], axis=-1).astype("float32")
    return x.astype("float32"), targets, joints


@keras.saving.register_keras_serializable(package="pose")
def masked_l2(truth, predicted):
    """The l2 loss of every row, a sum over its pixels; Keras takes the mean over the rows of the global batch."""
    return ops.sum(ops.square((predicted - truth[..., :-1]) * truth[..., -1:]), axis=(1, 2, 3)) / 2


def network(model_class):
    """Builds the network, with the same first weights every time."""
    keras.utils.set_random_seed(1)
    same, image = {"padding": "same", "activation": "relu"}, keras.Input((SIDE, SIDE, JOINTS))
    stem = layers.Conv2D(12, 5, strides=2, name="stem", kernel_regularizer=keras.regularizers.L2(1e-3), **same)(image)
    features = layers.Conv2D(16, 3, strides=2, name="coarse_features", **same)(stem)
    coarse = layers.Conv2D(JOINTS, 1, name="coarse")(features)
    joined = layers.Concatenate()([stem, layers.UpSampling2D()(features), layers.UpSampling2D()(coarse)])
    fine = layers.Conv2D(JOINTS, 1, name="fine")(layers.Conv2D(16, 3, name="fine_features", **same)(joined))
    return model_class(image, {"coarse": coarse, "fine": fine})


def error_in_pixels(model, x, joints):
    """The mean distance between the peak of a heatmap and the joint, in pixels of the picture."""
    peaks = model.predict(x, batch_size=BATCH, verbose=0)["fine"].reshape(len(x), -1, JOINTS).argmax(axis=1)
    found = (np.stack(np.unravel_index(peaks, (16, 16)), axis=-1) + 0.5) / 16
    return SIDE * np.mean(np.linalg.norm(found - joints, axis=-1))


def train(strategy, folder):
    """Trains, saves a file per epoch, fine-tunes from the last; returns losses and errors in pixels."""
    (x, targets, _), (held_out, _, joints) = pictures(ROWS, seed=1), pictures(16, seed=2)
    options, loss = {"batch_size": BATCH, "shuffle": False, "verbose": 0}, {"coarse": masked_l2, "fine": masked_l2}
    with strategy.scope():
        model = network(DistributedModel)
        model.compile(keras.optimizers.Adam(RATE), loss)
    saving = keras.callbacks.ModelCheckpoint(f"{folder}/pose-{{epoch}}.h5")
    losses = model.fit(x, targets, epochs=EPOCHS, callbacks=[saving], **options).history["loss"]
    error = error_in_pixels(model, held_out, joints)
    with strategy.scope():
        model = load_model(f"{folder}/pose-{EPOCHS}.h5")
        for name in FROZEN:
            model.get_layer(name).trainable = False
        model.compile(keras.optimizers.Adam(RATE / 5), loss)
    losses += model.fit(x, targets, epochs=2, **options).history["loss"]
    return losses, [error, error_in_pixels(model, held_out, joints)]


def main():
    strategies = {"two": mirrored_strategy(2), "one": tf.distribute.get_strategy()}  # one: no strategy
    runs = {name: train(strategy, tempfile.mkdtemp()) for name, strategy in strategies.items()}
    for name, (losses, errors) in runs.items():
        print(name, losses[0], losses[EPOCHS - 1], "fine-tuned", losses[-1], "joints off by", *np.round(errors, 2))
    np.testing.assert_allclose(*(losses for losses, _ in runs.values()), rtol=1e-4)
    assert losses[-1] < losses[EPOCHS - 1] < losses[0] / 2 and errors[-1] < 3, "nothing was learned"


if __name__ == "__main__":
    main()
