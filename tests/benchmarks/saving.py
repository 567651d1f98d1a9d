"""Time of saving and loading a large model, against plain Keras in the same run.

    python tests/benchmarks/saving.py [--megabytes 100] [--rounds 7]

Prints medians of alternating rounds, with the spread, and their ratio. Waiting for the disk is taken out of both and
stated apart: our saving waits, and plain Keras is made to wait here, after its time was taken. A file that
replaces another one without waiting is flushed by the file system in the middle of the rename, which would be
counted as ours. "whole" is saving with waiting, on both sides. "beside save" is plain Keras that writes to another
name and renames, the least that a save has to do which never leaves half a file: it needs memory of the system for
two files, where writing over the old one needs it for one.

Plain Keras leaves the optimizer, two thirds of the file, unread in `.h5`; the peer of our loading is therefore
its loading of `.keras`, which reads the same numbers. Its loading of `.h5` is printed too.
"""

import argparse
import collections
import gc
import os
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import devices

devices.make_cpu_devices(2)

import keras

from mirrored_keras import DistributedModel, load_model, load_weights, save_model, save_weights


def make_model(megabytes):
    width = int((megabytes * 1e6 / 4 / 3 / 4) ** 0.5)  # four square kernels, with two slots each
    inputs = keras.Input((width,))
    x = inputs
    for _ in range(4):
        x = keras.layers.Dense(width)(x)
    model = DistributedModel(inputs, x)
    model.compile("adam", keras.losses.MeanSquaredError())  # plain Keras cannot read "mse" from .h5
    model.optimizer.build(model.trainable_variables)
    return model


class Waiting:
    """Counts the seconds that a block waits for the disk."""

    def __enter__(self):
        self.seconds, self._fsync = 0.0, os.fsync
        os.fsync = self._timed
        return self

    def __exit__(self, *error):
        os.fsync = self._fsync

    def _timed(self, handle):
        start = time.perf_counter()
        self._fsync(handle)
        self.seconds += time.perf_counter() - start


def seconds(function, *arguments):
    gc.collect()  # models of the rounds before hold their arrays in cycles
    os.sync()  # nothing of the writer before is still on its way to the disk
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def wait_for_disk(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def round_of(times, suffix, stock, ours, paths):
    """Adds one measurement of each kind; the order alternates with the rounds."""
    actions = [
        lambda: save_stock(times, stock[suffix][0], paths["stock"]),
        lambda: save_waiting(times, "ours", ours[suffix][0], paths["ours"]),
        lambda: save_waiting(times, "beside", lambda path: save_beside(stock[suffix][0], path), paths["beside"]),
        lambda: times["stock load"].append(seconds(stock[suffix][1], paths["stock"])),
        lambda: times["ours load"].append(seconds(ours[suffix][1], paths["ours"])),
    ]
    if len(times["ours load"]) % 2:
        actions = [*actions[2::-1], *actions[:2:-1]]
    for act in actions:
        act()
    if suffix == ".h5":
        times["stock load, .keras"].append(seconds(stock[".keras"][1], paths[".keras"]))


def save_stock(times, save, path):
    taken = seconds(save, path)
    start = time.perf_counter()
    wait_for_disk(path)
    waited = time.perf_counter() - start
    add(times, "stock", taken, waited)


def save_beside(save, path):
    folder, name = os.path.split(path)
    beside = os.path.join(folder, f"new-{name}")
    save(beside)
    wait_for_disk(beside)
    os.replace(beside, path)


def save_waiting(times, kind, save, path):
    with Waiting() as disk:
        taken = seconds(save, path)
    add(times, kind, taken - disk.seconds, disk.seconds)


def add(times, kind, taken, waited):
    times[f"{kind} save"].append(taken)
    times[f"{kind} fsync"].append(waited)
    times[f"{kind} save, whole"].append(taken + waited)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    model = make_model(options.megabytes)
    stock = {
        ".keras": (lambda path: keras.saving.save_model(model, path), keras.saving.load_model),
        ".h5": (lambda path: keras.saving.save_model(model, path), keras.saving.load_model),
        ".weights.h5": (
            lambda path: keras.Model.save_weights(model, path),
            lambda path: keras.Model.load_weights(model, path),
        ),
    }
    ours = {
        ".keras": (lambda path: save_model(model, path), load_model),
        ".h5": (lambda path: save_model(model, path), load_model),
        ".weights.h5": (lambda path: save_weights(model, path), lambda path: load_weights(model, path)),
    }
    with tempfile.TemporaryDirectory() as folder:
        for suffix in stock:
            paths = {kind: os.path.join(folder, f"{kind}{suffix}") for kind in ("stock", "ours", "beside")}
            paths[".keras"] = os.path.join(folder, "stock.keras")
            times = collections.defaultdict(list)
            for _ in range(options.rounds + 1):
                round_of(times, suffix, stock, ours, paths)
            show(f"{suffix}, {os.path.getsize(paths['ours']) / 1e6:.0f} MB", times)


def show(title, times):
    print(title)
    for name, values in sorted(times.items(), key=lambda item: (item[0].split()[1].rstrip(","), item[0])):
        rounds = values[1:]  # the first one warms up
        peer = name.replace("ours", "stock").replace("beside", "stock")
        if name == "ours load" and "stock load, .keras" in times:
            peer = "stock load, .keras"
        ratio = statistics.median(ours / stock for ours, stock in zip(rounds, times[peer][1:], strict=True))
        print(
            f"    {name:18} {statistics.median(rounds):6.3f} s ({min(rounds):.3f} to {max(rounds):.3f})  {ratio:.2f} x"
        )


if __name__ == "__main__":
    main()
