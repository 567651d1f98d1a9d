"""Seconds to the end of the first step, and peak memory, of `DistributedModel.fit` against stock `keras.Model.fit`.

    python tests/benchmarks/first_step_and_memory.py --replicas 2 --rounds 5

Every measurement has a process of its own, in alternating rounds. The time runs from the call of `fit` to the first
`on_train_batch_end`, so it is mostly tracing. The memory is the growth of the peak resident set during `fit`, with
batches large enough that activations make up most of it. Printed are medians, their spread and ratios of medians.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time

from training_speed import MODELS, build

WAYS = ("stock", "ours")
ROWS_PER_REPLICA = {"small convnet": 4096}
STEPS = 60


def peak_megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(name, way, replicas):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    from mirrored_keras import DistributedModel, mirrored_strategy

    strategy = mirrored_strategy(replicas)
    import keras

    class FirstStep(keras.callbacks.Callback):
        """Notes when the first batch has been trained."""

        end = None

        def on_train_batch_end(self, batch, logs=None):
            self.end = self.end or time.perf_counter()

    units = 64 if name == "small convnet" else 16
    rows = ROWS_PER_REPLICA.get(name, 8192) * replicas
    with strategy.scope():
        base = keras.Model if way == "stock" else DistributedModel
        model = build(keras, base, name, units)
    data = (tf.random.normal((rows, units)), tf.random.normal((rows, 1)))
    dataset = tf.data.Dataset.from_tensors(data).repeat(STEPS)
    before, start, first = peak_megabytes(), time.perf_counter(), FirstStep()
    model.fit(dataset, verbose=0, shuffle=False, callbacks=[first])
    print(first.end - start, peak_megabytes() - before, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alone", nargs=2, metavar=("MODEL", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        measure(*options.alone, options.replicas)
        return
    for name in MODELS:
        results = {way: [] for way in WAYS}
        for _ in range(options.rounds):
            for way in WAYS:
                command = [sys.executable, __file__, "--replicas", str(options.replicas), "--alone", name, way]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                results[way].append([float(number) for number in output.split()[-2:]])
        print(f"R={options.replicas}  {name}", flush=True)
        stock = None
        for way, numbers in results.items():
            seconds, megabytes = (sorted(column) for column in zip(*numbers, strict=True))
            medians = statistics.median(seconds), statistics.median(megabytes)
            stock = stock or medians
            print(
                f"    {way:5}  first step {medians[0]:6.2f} s ({seconds[0]:.2f} to {seconds[-1]:.2f})"
                f"  {medians[0] / stock[0]:.2f} x    peak +{medians[1]:5.0f} MB"
                f" ({megabytes[0]:.0f} to {megabytes[-1]:.0f})  {medians[1] / stock[1]:.2f} x",
                flush=True,
            )


if __name__ == "__main__":
    main()
