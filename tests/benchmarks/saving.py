"""Time of saving and loading a large model, against plain Keras in the same run.

    python tests/benchmarks/saving.py [--megabytes 100] [--rounds 5]

Prints medians of alternating rounds, with the spread, and their ratio. "+ fsync" is what waiting for the disk
costs; plain Keras does not wait.
"""

import argparse
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


def seconds(function, *arguments):
    gc.collect()  # models of the rounds before hold their arrays in cycles
    os.sync()  # nothing of the writer before is still on its way to the disk
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    model = make_model(options.megabytes)
    stock = {
        ".keras": (keras.saving.save_model, lambda path: keras.saving.load_model(path)),
        ".h5": (keras.saving.save_model, lambda path: keras.saving.load_model(path)),
        ".weights.h5": (keras.Model.save_weights, lambda path: keras.Model.load_weights(model, path)),
    }
    ours = {
        ".keras": (save_model, load_model),
        ".h5": (save_model, load_model),
        ".weights.h5": (save_weights, lambda path: load_weights(model, path)),
    }
    fsync = os.fsync
    with tempfile.TemporaryDirectory() as folder:
        for suffix in stock:
            paths = [os.path.join(folder, f"{kind}{suffix}") for kind in ("stock", "ours")]
            times = {name: [] for name in ("stock save", "ours save", "+ fsync", "stock load", "ours load")}
            for _ in range(options.rounds):
                times["stock save"].append(seconds(stock[suffix][0], model, paths[0]))
                os.fsync = lambda handle: None
                times["ours save"].append(seconds(ours[suffix][0], model, paths[1]))
                os.fsync = fsync
                times["+ fsync"].append(seconds(ours[suffix][0], model, paths[1]))
                times["stock load"].append(seconds(stock[suffix][1], paths[0]))
                times["ours load"].append(seconds(ours[suffix][1], paths[1]))
            print(f"{suffix}, {os.path.getsize(paths[1]) / 1e6:.0f} MB")
            for name, values in times.items():
                base = times["stock load" if "load" in name else "stock save"]
                ratio = statistics.median(values) / statistics.median(base)
                spread = f"{min(values):.2f} to {max(values):.2f}"
                print(f"    {name:12} {statistics.median(values):6.2f} s ({spread})  {ratio:.2f} x")


if __name__ == "__main__":
    main()
