"""Seconds per training step of six ways to train the same model on the same batches and replicas.

    python tests/benchmarks/training_speed.py --replicas 1 2 4 --rounds 5

    a  stock `keras.Model.fit`
    b  legacy `tf_keras` `fit`, where it is installed
    c  a hand-written loop, one call of a `tf.function` per step
    d  a hand-written loop, the whole epoch in one call of a `tf.function`
    e  `DistributedModel.fit`
    f  `DistributedModel.fit` with `steps_per_execution`
    g  `DistributedModel.fit` with `steps_per_execution="auto"`
    h  the loop of d in the clothes of f: executions of as many steps, an iterator made twice per epoch as `fit` does,
       rows asked for in every batch, denominators summed over the replicas

All ways run in one process per number of replicas, in alternating rounds after a warm-up; printed are medians,
their spread, and medians of the ratios within a round. An epoch is long because a call of `fit` has a price of its
own, in Keras' making of iterators, that ways c and d do not pay. The hand-written loops do what the usual guide does
(mean loss of a replica's rows over the replicas, no metric but the loss), so they are a floor and no peer in
exactness. Nothing is asserted.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

ROWS_PER_REPLICA = 32
STEPS_PER_EXECUTION = 50
MODELS = ("tiny MLP", "120-variable MLP", "small convnet")


def layers_of(layers, name):
    if name == "small convnet":
        yield layers.Reshape((8, 8, 1))
        for filters in (8, 16):
            yield layers.Conv2D(filters, 3, padding="same", use_bias=False)
            yield layers.BatchNormalization()
            yield layers.ReLU()
            yield layers.MaxPooling2D()
        yield layers.Flatten()
    else:
        for _ in range(2 if name == "tiny MLP" else 59):
            yield layers.Dense(16, activation="tanh")
    yield layers.Dense(1)


def build(keras, base, name, units, **options):
    inputs = keras.Input((units,))
    x = inputs
    for layer in layers_of(keras.layers, name):
        x = layer(x)
    model = base(inputs, x)
    model.compile(keras.optimizers.SGD(0.01), loss="mse", **options)
    return model


def hand_written(strategy, model, dataset, keras, tf):
    """Returns functions that train one epoch: one step per call, and all steps in one call."""
    distributed = strategy.experimental_distribute_dataset(dataset)
    global_rows = ROWS_PER_REPLICA * strategy.num_replicas_in_sync
    with strategy.scope():
        tracker = keras.metrics.Mean()
        model.optimizer.build(model.trainable_variables)

    def on_replica(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.reduce_mean(tf.square(model(x, training=True) - y), -1)) / global_rows
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        tracker.update_state(loss)

    @tf.function
    def step(batch):
        strategy.run(on_replica, args=batch)

    @tf.function
    def epoch(iterator):
        for batch in iterator:
            strategy.run(on_replica, args=batch)

    def one_by_one():
        for batch in distributed:
            step(batch)

    return one_by_one, lambda: epoch(distributed)


def hand_written_as_fit(strategy, model, dataset, keras, tf):
    """Returns a function that trains one epoch with what any exact `fit` has to do around the step."""
    with strategy.scope():
        tracker = keras.metrics.Mean()
        model.optimizer.build(model.trainable_variables)

    def sum_over_replicas(value):
        def add(_, values):
            one_device = tf.distribute.ReductionToOneDevice()
            return one_device.reduce(tf.distribute.ReduceOp.SUM, values, destinations=values)

        return tf.distribute.get_replica_context().merge_call(add, args=(value,))

    def on_replica(x, y):
        global_rows = sum_over_replicas(tf.cast(tf.shape(x)[0], tf.float32))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.reduce_mean(tf.square(model(x, training=True) - y), -1)) / global_rows
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        tracker.update_state(loss)

    @tf.function
    def execution(iterator):
        done = tf.constant(0)
        for _ in tf.range(STEPS_PER_EXECUTION):
            x, y = iterator.get_next()
            rows = [tf.shape(part)[0] for value in (x, y) for part in strategy.experimental_local_results(value)]
            if tf.reduce_all(tf.stack(rows) > 0):
                strategy.run(on_replica, args=(x, y))
                done += 1
        return done

    def epoch():
        distributed = strategy.experimental_distribute_dataset(dataset)
        iterator, left = iter(distributed), int(dataset.cardinality())
        while left > 0:
            left -= int(execution(iterator))
        iter(distributed)

    return epoch


def ways_to_train(name, strategy, dataset, units):
    import keras
    import tensorflow as tf

    from mirrored_keras import DistributedModel

    def fit(model):
        return lambda: model.fit(dataset, verbose=0, shuffle=False)

    with strategy.scope():
        stock = build(keras, keras.Model, name, units)
        loop, loop_as_fit = (build(keras, keras.Model, name, units) for _ in range(2))
        ours = [
            build(keras, DistributedModel, name, units, steps_per_execution=steps)
            for steps in (1, STEPS_PER_EXECUTION, "auto")
        ]
    ways = {"a": fit(stock)}
    try:
        import tf_keras
    except ImportError:
        print("(b: tf_keras is not installed)", flush=True)
    else:
        with strategy.scope():
            ways["b"] = fit(build(tf_keras, tf_keras.Model, name, units))
    ways["c"], ways["d"] = hand_written(strategy, loop, dataset, keras, tf)
    ways.update(zip("efg", map(fit, ours), strict=True))
    ways["h"] = hand_written_as_fit(strategy, loop_as_fit, dataset, keras, tf)
    return ways


def measure(replicas, rounds, steps):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    tf.config.threading.set_inter_op_parallelism_threads(4 * replicas)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    for name in MODELS:
        units = 64 if name == "small convnet" else 16
        rows = ROWS_PER_REPLICA * replicas
        dataset = tf.data.Dataset.from_tensors((tf.random.normal((rows, units)), tf.random.normal((rows, 1))))
        ways = ways_to_train(name, strategy, dataset.repeat(steps), units)
        times = {key: [] for key in ways}
        for round_number in range(rounds + 1):
            for key, train in ways.items():
                start = time.perf_counter()
                train()
                if round_number:
                    times[key].append((time.perf_counter() - start) / steps * 1e6)
        medians = {key: statistics.median(values) for key, values in times.items()}
        print(f"R={replicas}  {name}", flush=True)
        for key, values in times.items():
            print(f"    {key}  {medians[key]:8.0f} us/step  ({min(values):.0f} to {max(values):.0f})")
        ratios = (("e", "a"), ("f", "d"), ("f", "a"), ("g", "a"), ("d", "a"), ("f", "h"))
        print("    " + "  ".join(f"{x}/{y} {ratio_of_rounds(times[x], times[y]):.2f}" for x, y in ratios), flush=True)


def ratio_of_rounds(these, others):
    return statistics.median(one / other for one, other in zip(these, others, strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    if len(options.replicas) == 1:
        measure(options.replicas[0], options.rounds, options.steps)
        return
    for replicas in options.replicas:  # default collectives: one device group per process
        arguments = ["--replicas", str(replicas), "--rounds", str(options.rounds), "--steps", str(options.steps)]
        subprocess.run([sys.executable, __file__, *arguments], check=True)


if __name__ == "__main__":
    main()
