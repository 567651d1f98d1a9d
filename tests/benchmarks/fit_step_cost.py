"""Cost of one `fit` step: `DistributedModel` against stock `keras.Model` on the same model, batches, replicas.

    python tests/benchmarks/fit_step_cost.py --replicas 2 4 --rounds 7

Both are timed in one process, in alternating rounds, after a warm-up epoch; the ratio of the medians and
the spread of the paired ratios are printed. Nothing is asserted: a benchmark is no test.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

ROWS_PER_REPLICA = 32
MODELS = {"3-layer MLP": (2, 16), "120-variable MLP": (59, 16)}


def build(base, hidden, units):
    import keras

    keras.utils.set_random_seed(0)
    inputs = keras.Input((units,))
    x = inputs
    for _ in range(hidden):
        x = keras.layers.Dense(units, activation="tanh")(x)
    model = base(inputs, keras.layers.Dense(1)(x))
    model.compile(keras.optimizers.SGD(0.01), loss="mse")
    return model


def measure(replicas, rounds, steps):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    tf.config.threading.set_inter_op_parallelism_threads(4 * replicas)
    import keras

    from mirrored_keras import DistributedModel

    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    for name, (hidden, units) in MODELS.items():
        rows = ROWS_PER_REPLICA * replicas
        x, y = tf.random.normal((rows, units)), tf.random.normal((rows, 1))
        dataset = tf.data.Dataset.from_tensors((x, y)).repeat(steps)
        with strategy.scope():
            models = {"ours": build(DistributedModel, hidden, units), "stock": build(keras.Model, hidden, units)}
        times = {key: [] for key in models}
        for round_number in range(rounds + 1):
            for key, model in models.items():
                start = time.perf_counter()
                model.fit(dataset, epochs=1, verbose=0, shuffle=False)
                if round_number:
                    times[key].append((time.perf_counter() - start) / steps * 1e6)
        ours, stock = (statistics.median(times[key]) for key in ("ours", "stock"))
        paired = sorted(a / b for a, b in zip(times["ours"], times["stock"], strict=True))
        print(
            f"R={replicas}  {name:18s} stock {stock:8.0f} us/step  ours {ours:8.0f} us/step  "
            f"ratio {ours / stock:.3f}  (paired {paired[0]:.3f} to {paired[-1]:.3f})",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    if len(options.replicas) == 1:
        measure(options.replicas[0], options.rounds, options.steps)
        return
    for replicas in options.replicas:  # default collectives: one device group per process
        arguments = ["--replicas", str(replicas), "--rounds", str(options.rounds), "--steps", str(options.steps)]
        subprocess.run([sys.executable, __file__, *arguments], check=True)


if __name__ == "__main__":
    main()
