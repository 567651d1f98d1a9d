"""Trains in processes that are killed at any moment, each going on with another number of replicas.

python tests/checkpoint/killed.py FOLDER KILLS

One process imports TensorFlow, which takes seconds, and forks before it starts; every training is in a child.
"""

import os
import pathlib
import random
import signal
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import keras
import numpy as np
import tensorflow as tf

from devices import make_cpu_devices, strategy_for
from mirrored_keras import DistributedModel, Resume

ROWS, BATCH, EPOCHS = 240, 4, 3
REPLICAS = (None, 2, 1, 3)


class KilledSoon(keras.callbacks.Callback):
    """Kills the process after some steps and a part of a step: in a step, while a state is written, or between."""

    def __init__(self, seed):
        super().__init__()
        numbers = random.Random(seed)
        self.left, self.delay = numbers.randint(2, 9), numbers.uniform(0, 0.05)

    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            threading.Timer(self.delay, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def get_state(self):
        return None

    def set_state(self, state):
        pass


def train(folder, replicas, kill_seed=None):
    make_cpu_devices(4)
    strategy = strategy_for(replicas)
    keras.utils.set_random_seed(3)
    numbers = np.random.RandomState(1)
    x, y = numbers.normal(size=(ROWS, 6)).astype("float32"), numbers.normal(size=(ROWS, 1)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS, seed=5).batch(BATCH)
    with strategy.scope() if strategy is not None else tf.init_scope():
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(8, activation="relu")(inputs)
        hidden = keras.layers.BatchNormalization(synchronized=True)(hidden)
        hidden = keras.layers.Dropout(0.2)(hidden)
        model = DistributedModel(inputs, keras.layers.Dense(1)(hidden))
        model.compile("adam", "mse", randomness="row")
    stops = [] if kill_seed is None else [KilledSoon(kill_seed)]
    callbacks = [
        Resume(folder / "states", every_steps=1),
        keras.callbacks.ReduceLROnPlateau("loss", patience=0),
        *stops,
    ]
    history = model.fit(data, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
    arrays = [np.asarray(variable.value) for variable in [*model.weights, *model.optimizer.variables]]
    np.savez(folder / "result.npz", *arrays, loss=history.history["loss"])


def in_child(*arguments):
    """Returns the status of a forked process that trains: a negative signal, or the exit code."""
    child = os.fork()
    if not child:
        try:
            train(*arguments)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(folder, kills):
    statuses = []
    for number in range(kills):
        statuses.append(in_child(folder / "parts", REPLICAS[number % len(REPLICAS)], number))
        assert statuses[-1] in (-signal.SIGKILL, 0), statuses
    assert in_child(folder / "parts", None) == 0
    assert in_child(folder / "whole", None) == 0
    print(-signal.SIGKILL, statuses.count(-signal.SIGKILL), sorted(p.name for p in (folder / "parts/states").iterdir()))


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    for name in ("parts", "whole"):
        (folder / name).mkdir()
    main(folder, int(sys.argv[2]))
