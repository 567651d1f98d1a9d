"""TF1 towers with averaged gradients beside `fit`: the same updates, and what towers do with a short batch.

python examples/06_tf1_towers.py

The first half is a program of TensorFlow 1 as it stands: graph, session, variables on the CPU, a tower per device,
gradients averaged over the towers. Prints, after every batch of real digits, how far its weights and those of a
`DistributedModel` on two replicas are from those of one replica. The last batch has 3 rows, 2 and 1 for the towers: the
average of two means is no mean over 3 rows.
"""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # two parts of the CPU, whatever the machine has
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras import DistributedModel, mirrored_strategy
from mirrored_keras.data import digits_dataset

TOWERS, SIZES = 2, (64, 64, 64, 64, 3)
RATE, MOMENTUM = 0.1, 0.9
v1 = tf.compat.v1


def loss_of(variables, x, y):
    """The network of TensorFlow 1: two dense layers, and the mean over the rows of a tower."""
    kernel, bias, head_kernel, head_bias = variables
    hidden = tf.tanh(tf.matmul(tf.reshape(x, (-1, 64)), kernel) + bias)
    logits = tf.matmul(hidden, head_kernel) + head_bias
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


def train_towers(weights, batches):
    """Trains towers in a session; returns the weights after every batch."""
    found = []
    with tf.Graph().as_default():
        with tf.device("/cpu:0"):
            variables = [v1.get_variable(f"variable_{i}", initializer=value) for i, value in enumerate(weights)]
            optimizer = v1.train.MomentumOptimizer(RATE, MOMENTUM)
        towers, gradients = [], []
        for tower in range(TOWERS):
            with tf.device(f"/cpu:{tower}"), v1.name_scope(f"tower_{tower}"):
                x, y = v1.placeholder(tf.float32, (None, 8, 8, 1)), v1.placeholder(tf.int32, (None,))
                towers += [x, y]
                gradients.append([g for g, _ in optimizer.compute_gradients(loss_of(variables, x, y), variables)])
        with tf.device("/cpu:0"):
            averaged = [tf.add_n(of_one) / TOWERS for of_one in zip(*gradients, strict=True)]
            update = optimizer.apply_gradients(zip(averaged, variables, strict=True))
        with v1.Session(config=v1.ConfigProto(device_count={"CPU": TOWERS})) as session:
            session.run(v1.global_variables_initializer())
            for x, y in batches:
                parts = zip(np.array_split(x, TOWERS), np.array_split(y, TOWERS), strict=True)
                session.run(update, dict(zip(towers, [value for part in parts for value in part], strict=True)))
                found.append(session.run(variables))
    return found


def network(strategy):
    """The same network in Keras."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        image = keras.Input((8, 8, 1))
        hidden = keras.layers.Dense(16, activation="tanh")(keras.layers.Flatten()(image))
        model = DistributedModel(image, keras.layers.Dense(10)(hidden))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(RATE, momentum=MOMENTUM), loss)
    return model


def train_keras(model, batches):
    """Trains a Keras model; yields the weights after every batch."""
    for x, y in batches:
        model.train_on_batch(x, y)
        yield model.get_weights()


def main():
    """Trains three ways and prints a table."""
    two, one = mirrored_strategy(TOWERS), tf.distribute.get_strategy()  # one: no strategy
    x, y = next(digits_dataset("train", global_batch_size=sum(SIZES)).as_numpy_iterator())
    ends = np.cumsum(SIZES)
    batches = [(x[end - size : end], y[end - size : end]) for size, end in zip(SIZES, ends, strict=True)]
    models = network(one), network(two)
    trained = [train_towers(models[0].get_weights(), batches), *(train_keras(model, batches) for model in models)]
    print("| rows | towers | `DistributedModel` |   largest distance of a weight from one replica\n|---|---|---|")
    for size, towers, reference, ours in zip(SIZES, *trained, strict=True):
        distances = [max(np.max(np.abs(a - b)) for a, b in zip(w, reference, strict=True)) for w in (towers, ours)]
        print(f"| {size} | {distances[0]:.1e} | {distances[1]:.1e} |")
        if not (distances[1] <= 1e-6 and (distances[0] <= 1e-6) == (size % TOWERS == 0)):
            raise SystemExit("towers and replicas did not do what was said")


if __name__ == "__main__":
    main()
