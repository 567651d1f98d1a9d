"""Small trainings that every worker runs with the others and, to compare, alone on one replica."""

import contextlib
import json
import os
import time
import traceback

import keras
import numpy as np

import tolerances
from invariance.compare import logs_error, weights_error
from mirrored_keras import DistributedModel

ROWS = 21  # with batches of 8: a last one of 5, which 3 and more replicas share as 2, 2, 1, 0


def arrays(rows=ROWS, seed=3):
    numbers = np.random.RandomState(seed)
    x = numbers.normal(size=(rows, 5)).astype("float32")
    y = numbers.normal(size=(rows, 1)).astype("float32")
    return x, y, numbers.uniform(0.2, 2.0, size=rows).astype("float32")


def build(strategy, *, layers=(), optimizer=None, base=DistributedModel, width=6, **options):
    with strategy.scope() if strategy else contextlib.nullcontext():
        keras.utils.set_random_seed(11)
        inputs = keras.Input((5,))
        hidden = keras.layers.Dense(width, activation="tanh")(inputs)
        for layer in layers() if layers else ():
            hidden = layer(hidden)
        model = base(inputs, keras.layers.Dense(1, dtype="float32")(hidden))
        optimizer = optimizer() if optimizer else keras.optimizers.Adam(0.02, global_clipnorm=0.5)
        model.compile(optimizer, "mse", metrics=["mae"], **options)
    return model


def trained(strategy, fit, **options):
    """Returns first weights, last weights and history of `fit(model)`."""
    model = build(strategy, **options)
    start = model.get_weights()
    history = fit(model)
    return model, start, model.get_weights(), history.history


def assert_one(strategy, fit, *, steps, **options):
    """Trains with all workers and alone, and compares weights and history."""
    _, start, expected, history = trained(None, fit, **options)
    model, _, received, many = trained(strategy, fit, **options)
    error = weights_error(expected, received, start)
    assert error <= tolerances.weights(steps), f"weights off by {error:.2e}"
    error_of_logs = logs_error(history, many)
    assert error_of_logs <= tolerances.logs(steps), f"logs off by {error_of_logs:.2e}: {history} {many}"
    return {"error": error, "error_of_logs": error_of_logs}, model


class Sequence(keras.utils.PyDataset):
    """Batches of rows by index; may be read by threads."""

    def __init__(self, rows=ROWS, batch=8, **options):
        super().__init__(**options)
        self.parts, self.batch = arrays(rows), batch

    def __len__(self):
        return -(-len(self.parts[0]) // self.batch)

    def __getitem__(self, index):
        return tuple(part[index * self.batch : (index + 1) * self.batch] for part in self.parts)


def main(cases, names, *arguments):
    """Runs cases one after the other and prints a line of JSON for each."""
    for name in names or list(cases):
        start, found = time.monotonic(), {"case": name}
        try:
            found |= cases[name](*arguments) or {}
        except Exception:
            found["failed"] = traceback.format_exc()[-2500:]
        found["seconds"] = round(time.monotonic() - start, 2)
        print(json.dumps(found), flush=True)
        if "failed" in found:  # the other workers may be elsewhere now
            os._exit(1)
