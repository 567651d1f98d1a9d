"""Searches in processes that are killed at any moment, until one comes to the end; then once without a kill.

python tests/tuning/killed_search.py TUNER FOLDER KILLS

One process imports TensorFlow, which takes seconds, and forks before it starts; every search is in a child.
"""

import json
import os
import pathlib
import random
import signal
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import keras

from devices import make_cpu_devices
from mirrored_keras import tuning
from tuning.searches import build_eager, data

OPTIONS = {
    "RandomSearch": {"max_trials": 3},
    "BayesianOptimization": {"max_trials": 4, "num_initial_points": 2},
    "GridSearch": {"max_trials": 3},
    "Hyperband": {"max_epochs": 4, "factor": 2},
}


class KilledSoon(keras.callbacks.Callback):
    """Kills the process after some steps and a part of a second: in a step, while files are written, or between."""

    def __init__(self, seed, most_steps):
        super().__init__()
        numbers = random.Random(seed)
        self.left, self.delay = numbers.randint(1, most_steps), numbers.uniform(0, 0.1)

    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            threading.Timer(self.delay, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def get_state(self):
        return None

    def set_state(self, state):
        pass


def search(name, folder, scale, kill_seed=None):
    make_cpu_devices(2)
    keras.utils.set_random_seed(1)
    options = {key: scale * value if key == "max_trials" else value for key, value in OPTIONS[name].items()}
    tuner = getattr(tuning, name)(build_eager, "val_loss", seed=4, directory=folder, **options)
    x, y, held_out = data()
    soon = [] if kill_seed is None else [KilledSoon(kill_seed, 14 // scale)]
    callbacks = lambda context: [keras.callbacks.ReduceLROnPlateau("loss", patience=0), *soon]  # noqa: E731
    # shuffled: the order of an epoch that is trained again must be that of then
    tuner.search(x, y, epochs=3, batch_size=16, validation_data=held_out, verbose=0, callbacks=callbacks)
    rows = [{key: row[key] for key in row if key not in ("seeds",)} for row in tuner.results()]
    pathlib.Path(folder, "rows.json").write_text(json.dumps(rows), encoding="utf-8")


def in_child(*arguments):
    """Returns the status of a forked process that searches: a negative signal, or the exit code."""
    child = os.fork()
    if not child:
        try:
            search(*arguments)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(name, folder, kills):
    done, scale = 0, 1 if kills < 10 else 3  # more kills need more to do, and come sooner
    for attempt in range(20 * kills):
        status = in_child(name, os.path.join(folder, "parts"), scale, attempt if done < kills else None)
        if status == 0:
            break
        assert status == -signal.SIGKILL, status
        done += 1
    assert in_child(name, os.path.join(folder, "whole"), scale) == 0
    print("killed", done)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
