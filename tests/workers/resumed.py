"""Run by `mirrored-keras launch` in the tests of faults: a training that loses workers, and goes on.

python resumed.py FOLDER FAULTS

FAULTS: for each attempt "worker:signal:step", the signal that this worker sends itself after the step; comma between.
"""

import os
import sys
import time

from workers.strategies import worker_strategy

STRATEGY = worker_strategy(timeout_seconds=60)

import json

import keras
import numpy as np

import tolerances
from invariance.compare import logs_error, weights_error
from mirrored_keras import Resume
from mirrored_keras.replica import workers
from workers.training import arrays, build

EPOCHS, ROWS = 3, 46  # 6 steps in an epoch, the last one short


class Fault(keras.callbacks.Callback):
    """Sends this process a signal after a step of this attempt's training, counted over all epochs."""

    def __init__(self, text):
        super().__init__()
        worker, number, self.step = map(int, text.split(":"))
        self.signal = number if worker == workers.index_of(STRATEGY) else None
        self.epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.15)
        step = self.epoch * 6 + batch + 1
        if step >= self.step and self.signal is not None:  # a state that was written at SIGTERM may be a later one
            number, self.signal = self.signal, None
            print(json.dumps({"signal": number, "step": step, "time": time.time()}), flush=True)
            os.kill(os.getpid(), number)

    def get_state(self):
        return None

    def set_state(self, state):
        pass


def fit(model, callbacks):
    x, y, w = arrays(ROWS)
    return model.fit(x, y, sample_weight=w, batch_size=8, epochs=EPOCHS, verbose=0, callbacks=callbacks)


def layers():
    return [keras.layers.BatchNormalization(synchronized=True), keras.layers.Dropout(0.3, seed=4)]


def main():
    folder, faults = sys.argv[1], sys.argv[2].split(",")
    attempt = int(os.environ["MIRRORED_KERAS_ATTEMPT"])
    fault = [Fault(faults[attempt])] if attempt < len(faults) and faults[attempt] else []
    options = {"layers": layers, "randomness": "row"}
    model = build(STRATEGY, **options)
    start = model.get_weights()
    history = fit(model, [*fault, Resume(folder, every_steps=2)])
    # undisturbed, on one replica; the order of rows follows from the seed of the state
    alone = build(None, **options)
    if workers.is_chief(STRATEGY):
        from mirrored_keras.checkpoint.state_files import StateFiles

        os.makedirs(folder + "-alone", exist_ok=True)
        seed = StateFiles(folder, keep=2).newest().header["seed"]
        from mirrored_keras.checkpoint import random_states

        random_states.new_seed = lambda: seed
        expected = fit(alone, [Resume(folder + "-alone")])
        error = weights_error(alone.get_weights(), model.get_weights(), start)
        error_of_logs = logs_error(expected.history, history.history)
        print(json.dumps({"error": error, "error_of_logs": error_of_logs, "attempt": attempt}), flush=True)
        assert error <= tolerances.weights(18), error
        assert error_of_logs <= tolerances.logs(18), error_of_logs
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


if __name__ == "__main__":
    main()
