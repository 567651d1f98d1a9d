"""Peak memory of one training step for several numbers of micro-batches, each in a process of its own.

    python tests/benchmarks/micro_batch_memory.py --micro-batches 1 2 4 8

The model keeps large activations and few weights. Printed are the growth of the resident set above what the
process held before `fit`, its ratio to one piece, and the loss after the steps, which must not depend on k.
"""

import argparse
import os
import resource
import subprocess
import sys

ROWS, SIZE, CHANNELS, LAYERS = 512, 64, 16, 6


def peak_megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(micro_batches, replicas):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import numpy as np

    from mirrored_keras import DistributedModel, mirrored_strategy

    strategy = mirrored_strategy(replicas)
    import keras

    keras.utils.set_random_seed(0)
    with strategy.scope():
        inputs = keras.Input((SIZE, SIZE, 3))
        x = inputs
        for _ in range(LAYERS):
            x = keras.layers.Conv2D(CHANNELS, 3, padding="same", activation="tanh")(x)
        model = DistributedModel(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling2D()(x)))
        model.compile(keras.optimizers.SGD(0.01), "mse", micro_batches=micro_batches)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(ROWS, SIZE, SIZE, 3)).astype("float32"), random.normal(size=(ROWS, 1)).astype("float32")
    before = peak_megabytes()
    history = model.fit(x, y, batch_size=ROWS, epochs=1, verbose=0, shuffle=False)
    print(micro_batches, peak_megabytes() - before, history.history["loss"][-1], flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        measure(options.micro_batches[0], options.replicas)
        return
    first = None
    for count in options.micro_batches:
        command = [sys.executable, __file__, "--alone", "--replicas", str(options.replicas)]
        output = subprocess.run(
            [*command, "--micro-batches", str(count)], check=True, capture_output=True, text=True
        ).stdout
        _, megabytes, loss = output.split()[-3:]
        first = first or float(megabytes)
        print(
            f"micro_batches={count:2d}  peak +{float(megabytes):6.0f} MB  {float(megabytes) / first:.2f} x  loss {loss}"
        )


if __name__ == "__main__":
    main()
