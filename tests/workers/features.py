"""Run by `test_features.py` in every worker: what `fit` and its like can be given, against one replica.

python features.py REPLICAS_PER_WORKER NAME ...
"""

import sys
import tempfile

from workers.strategies import worker_strategy

STRATEGY = worker_strategy(int(sys.argv[1]), timeout_seconds=60)

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras import DistributedModel, GlobalBatch, sync_batch_norm
from mirrored_keras.data import tfrecord_dataset, write_tfrecords
from mirrored_keras.replica import workers
from workers.training import ROWS, Sequence, arrays, assert_one, build, main, trained


def dataset(rows=ROWS, batch=8, **options):
    return tf.data.Dataset.from_tensor_slices(arrays(rows)).batch(batch, **options)


def arrays_and_validation(s):
    x, y, w = arrays()

    def fit(model):
        return model.fit(x, y, sample_weight=w, batch_size=8, epochs=2, shuffle=False, validation_split=0.3, verbose=0)

    return assert_one(s, fit, steps=4)[0]


def shuffled_arrays(s):
    """Every row once per epoch: a sum over the epoch does not depend on the order."""
    x, y, w = arrays()
    model = build(s, optimizer=lambda: keras.optimizers.SGD(0.0))
    alone = build(None, optimizer=lambda: keras.optimizers.SGD(0.0))
    loss = model.fit(x, y, sample_weight=w, batch_size=8, epochs=2, verbose=0).history["loss"]
    expected = alone.evaluate(x, y, sample_weight=w, verbose=0, return_dict=True)["loss"]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def short_and_empty(s):
    """17 rows in batches of 8: the last one leaves replicas without rows; 1 row: all but one."""
    found = {}
    for rows in (17, 1):
        x, y, w = arrays(rows)

        def fit(model, x=x, y=y, w=w):
            return model.fit(x, y, sample_weight=w, batch_size=8, epochs=2, shuffle=False, verbose=0)

        found[rows] = assert_one(s, fit, steps=6)[0]
    return {str(rows): one for rows, one in found.items()}


def seeded_dataset(s):
    def fit(model):
        # a new one for each training: a shuffled dataset has another order each time that it is gone through
        data = tf.data.Dataset.from_tensor_slices(arrays()).shuffle(ROWS, seed=5).batch(8).repeat()
        return model.fit(data, epochs=2, steps_per_epoch=4, shuffle=False, verbose=0)

    return assert_one(s, fit, steps=8)[0]


def generator(s):
    """Batches of other sizes, of unknown number."""

    def batches():
        x, y, w = arrays(24)
        for start, stop in ((0, 7), (7, 8), (8, 19), (19, 24)):
            yield x[start:stop], y[start:stop], w[start:stop]

    def fit(model):
        model.fit(batches(), shuffle=False, verbose=0)
        return model.fit(batches(), epochs=2, steps_per_epoch=3, shuffle=False, verbose=0)

    return assert_one(s, fit, steps=10)[0]


def py_dataset(s):
    def fit(model):
        return model.fit(Sequence(workers=2), epochs=2, shuffle=False, validation_data=Sequence(rows=11), verbose=0)

    return assert_one(s, fit, steps=6)[0]


def shuffled_py_dataset(s):
    seen = []

    class Noting(Sequence):
        def __getitem__(self, index):
            seen.append(index)
            return super().__getitem__(index)

    build(s).fit(Noting(rows=64), epochs=2, verbose=0)
    first, second = seen[-16:-8], seen[-8:]  # Keras looks at batches beforehand
    assert sorted(first) == sorted(second) == list(range(8)) != first != second, seen
    table = workers.gathered(s, seen, what="a test")
    assert (table == table[0]).all(), table


def tfrecords(s):
    x, y, w = arrays()
    with tempfile.TemporaryDirectory() as folder:
        write_tfrecords({"x": x, "y": y, "w": w}, folder, shards=3, verbose=0)

        def data(**options):
            names = {"inputs": "x", "targets": "y", "sample_weight": "w"}
            return tfrecord_dataset(folder, global_batch_size=12, shuffle=True, seed=3, **names, **options)

        found = assert_one(s, lambda model: model.fit(data(), epochs=2, shuffle=False, verbose=0), steps=6)[0]
        # each worker reads its own records only
        shared = s.distribute_datasets_from_function(lambda context: data(input_context=context))
        _, _, expected, history = trained(None, lambda model: model.fit(data(), epochs=2, shuffle=False, verbose=0))
        _, _, received, many = trained(s, lambda model: model.fit(shared, epochs=2, shuffle=False, verbose=0))
        for a, b in zip(expected, received, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6)
        np.testing.assert_allclose(history["loss"], many["loss"], rtol=2e-6)
    return found


def evaluate_and_predict(s):
    x, y, w = arrays(17)
    one, many = build(None), build(s)
    for data in ({"x": x, "batch_size": 8}, {"x": tf.data.Dataset.from_tensor_slices((x,)).batch(5)}):
        np.testing.assert_allclose(one.predict(**data, verbose=0), many.predict(**data, verbose=0), atol=1e-6)
    expected = one.evaluate(x, y, sample_weight=w, batch_size=8, verbose=0, return_dict=True)
    received = many.evaluate(x, y, sample_weight=w, batch_size=8, verbose=0, return_dict=True)
    np.testing.assert_allclose(list(expected.values()), list(received.values()), rtol=2e-6)
    for _ in range(2):
        expected = one.train_on_batch(x[:7], y[:7], sample_weight=w[:7], return_dict=True)
        received = many.train_on_batch(x[:7], y[:7], sample_weight=w[:7], return_dict=True)
    np.testing.assert_allclose(list(expected.values()), list(received.values()), rtol=2e-6)
    np.testing.assert_allclose(one.predict_on_batch(x[:7]), many.predict_on_batch(x[:7]), atol=1e-5)
    np.testing.assert_allclose(one.test_on_batch(x, y), many.test_on_batch(x, y), rtol=1e-5)


def batch_normalization(s):
    """Synchronised: equal to one replica. Plain: one set of moving statistics on all workers."""
    x, y, w = arrays()

    def fit(model):
        return model.fit(x, y, sample_weight=w, batch_size=8, epochs=2, shuffle=False, verbose=0)

    synchronized = lambda: [keras.layers.BatchNormalization(synchronized=True)]  # noqa: E731
    found = assert_one(s, fit, steps=6, layers=synchronized)[0]
    model = build(s, layers=lambda: [keras.layers.BatchNormalization()])
    fit(model)
    statistics = [float(number) for weight in model.non_trainable_weights for number in np.ravel(weight.numpy())]
    table = workers.gathered(s, statistics, what="a test")
    assert (table == table[0]).all() and np.isfinite(table).all() and np.abs(table).max() > 0
    # the live model evaluates alike everywhere, which the start of `evaluate` compares too
    fit(sync_batch_norm(model) or model)
    return found


def dropout(s):
    """By row: equal to one replica. By default: other masks on every replica."""
    x, y, w = arrays()

    def fit(model):
        return model.fit(x, y, sample_weight=w, batch_size=8, epochs=2, shuffle=False, verbose=0)

    def layers():
        return [keras.layers.Dropout(0.4, seed=3)]

    found = assert_one(s, fit, steps=6, layers=layers, randomness="row")[0]
    masks = []

    class Keeping(DistributedModel):
        def train_step(self, data):
            logs = super().train_step(data)
            drawn = self.layers[2](tf.ones((4, 6)), training=True)
            return logs | {"mask": tf.reduce_sum(drawn * tf.reshape(2.0 ** tf.range(24.0), (4, 6)))}

    model = build(s, layers=layers, base=Keeping)
    model.distribute_reduction_method = "first"
    model.fit(x, y, batch_size=21, verbose=0, callbacks=[
        keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: masks.append(logs["mask"]))
    ])  # fmt: skip
    return found


def overflow_on_one_worker(s):
    """One row overflows: the update is skipped by all workers, and nobody waits for anybody."""
    x, y, _ = arrays(29)
    y[1] = 1e4  # its gradient times the loss scale is no number of float16
    keras.config.set_dtype_policy("mixed_float16")
    try:

        def scaled():
            return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01, momentum=0.5), initial_scale=2.0**10)

        def fit(model):
            return model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)

        def relu():
            return [keras.layers.Dense(8, activation="relu")]

        one, _, expected, _ = trained(None, fit, optimizer=scaled, layers=relu)
        many, _, received, _ = trained(s, fit, optimizer=scaled, layers=relu)
    finally:
        keras.config.set_dtype_policy("float32")
    iterations = int(many.optimizer.inner_optimizer.iterations.numpy())
    assert iterations == int(one.optimizer.inner_optimizer.iterations.numpy()) < 8, iterations
    assert float(many.optimizer.dynamic_scale.numpy()) == float(one.optimizer.dynamic_scale.numpy()) < 2.0**10
    for a, b in zip(expected, received, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-3)
    return {"iterations": iterations}


def pieces_and_averages(s):
    """Micro-batches, accumulation, averages, several steps per execution, all at once."""
    x, y, w = arrays()

    def optimizer():
        return keras.optimizers.SGD(
            0.3, gradient_accumulation_steps=2, global_clipnorm=0.3, use_ema=True, ema_momentum=0.7, weight_decay=0.01
        )

    def fit(model):
        return model.fit(x, y, sample_weight=w, batch_size=8, epochs=2, shuffle=False, verbose=0)

    return assert_one(s, fit, steps=6, optimizer=optimizer, micro_batches=3, steps_per_execution=2)[0]


def own_train_step(s):
    x, y, _ = arrays()

    class Model(DistributedModel):
        def train_step(self, data):
            x, y = data
            batch = GlobalBatch(x)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
                share = batch.share(loss)
            gradients = tape.gradient(share, self.trainable_variables)
            batch.apply_gradients(self.optimizer, gradients, self.trainable_variables)
            return {"loss": loss, "twice": loss * 2.0}

    def fit(model):
        return model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)

    return assert_one(s, fit, steps=6, base=Model)[0]


def metrics_of_many_kinds(s):
    x, y, w = arrays()
    y = (y > 0).astype("float32")
    found = []
    for strategy in (None, s):
        model = build(strategy)
        with strategy.scope() if strategy else tf.init_scope():
            model.compile("sgd", "mse", metrics=[keras.metrics.AUC(thresholds=[0.2, 0.5]), "accuracy", "mae"],
                          weighted_metrics=["mse"])  # fmt: skip
        found.append(model.evaluate(x, y, sample_weight=w, batch_size=8, verbose=0, return_dict=True))
    np.testing.assert_allclose(list(found[0].values()), list(found[1].values()), rtol=1e-5)


def ragged_lengths(s):
    """Sequences whose longest row decides the width of a batch."""
    x = [np.arange(1, n + 1) for n in (1, 5, 2, 4, 3, 1, 2, 6, 1)]
    y = np.random.RandomState(0).normal(size=(9, 1)).astype("float32")
    data = tf.data.Dataset.from_generator(
        lambda: zip(x, y, strict=True),
        output_signature=(tf.TensorSpec([None], tf.int64), tf.TensorSpec([1], tf.float32)),
    )
    data = data.padded_batch(4).apply(tf.data.experimental.assert_cardinality(3))
    weights = []
    for strategy in (None, s):
        with strategy.scope() if strategy else tf.init_scope():
            keras.utils.set_random_seed(2)
            inputs = keras.Input((None,), dtype="int64")
            hidden = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(9, 4, mask_zero=True)(inputs))
            model = DistributedModel(inputs, keras.layers.Dense(1)(hidden))
            model.compile(keras.optimizers.Adam(0.05), "mse", steps_per_execution=2)
        model.fit(data, epochs=2, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for a, b in zip(*weights, strict=True):
        np.testing.assert_allclose(a, b, atol=3e-6)


CASES = {
    function.__name__: function
    for function in (
        arrays_and_validation, shuffled_arrays, short_and_empty, seeded_dataset, generator, py_dataset,
        shuffled_py_dataset, tfrecords, evaluate_and_predict, batch_normalization, dropout, overflow_on_one_worker,
        pieces_and_averages, own_train_step, metrics_of_many_kinds, ragged_lengths,
    )
}  # fmt: skip


if __name__ == "__main__":
    main(CASES, sys.argv[2:], STRATEGY)
