"""`steps_per_execution`: several steps in one graph are the same steps, with tails, limits and callbacks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from mirrored_keras import DistributedModel, GlobalBatch
from mirrored_keras.pace import looks_at_batches
from model.regression import made_under

RANDOM = np.random.default_rng(5)
X, Y = RANDOM.normal(size=(37, 4)).astype("float32"), RANDOM.normal(size=(37, 1)).astype("float32")

pytestmark = [pytest.mark.filterwarnings("ignore:Your input ran out of data"), pytest.mark.table(every=3)]


class OwnValues(DistributedModel):
    """Logs numbers that no metric keeps."""

    def train_step(self, data):
        x, y = data
        batch = GlobalBatch(x)
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            share = batch.share(tf.reduce_mean(tf.square(predictions - y)))
        gradients = tape.gradient(share, self.trainable_variables)
        batch.apply_gradients(self.optimizer, gradients, self.trainable_variables)
        return {"loss": batch.mean(tf.reduce_mean(tf.square(predictions - y))), "size": tf.reduce_mean(predictions)}


def batches(kind):
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    if kind == "a row in between":
        rows = dataset.unbatch()
        return rows.take(8).batch(4).concatenate(rows.skip(8).take(1).batch(4)).concatenate(rows.skip(9).batch(4))
    return dataset.filter(lambda x, y: True) if kind == "unknown length" else dataset


def train(replicas, steps_per_execution, *, base=DistributedModel, kind="known length", callbacks=(), **options):
    def build():
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(3, activation="tanh")(inputs)
        model = base(inputs, keras.layers.Dense(1)(hidden))
        adam = keras.optimizers.Adam(0.01)
        model.compile(adam, "mse", metrics=["mae"], steps_per_execution=steps_per_execution)
        return model

    model = made_under(replicas, build)
    history = model.fit(batches(kind), epochs=3, verbose=0, shuffle=False, callbacks=list(callbacks), **options)
    return model, history.history


@pytest.mark.parametrize(
    ("replicas", "kind", "base"),
    [
        (None, "known length", OwnValues),
        (None, "unknown length", DistributedModel),
        (3, "known length", DistributedModel),
        (3, "unknown length", OwnValues),
        (3, "a row in between", DistributedModel),
        (2, "a row in between", OwnValues),
    ],
)
def test_same_as_single_steps(replicas, kind, base):
    one, history = train(replicas, 1, base=base, kind=kind)
    evaluation = one.evaluate(batches(kind), verbose=0)
    for count in (7, "auto"):
        model, received = train(replicas, count, base=base, kind=kind)
        assert int(model.optimizer.iterations.numpy()) == 30
        assert received == history
        assert model.evaluate(batches(kind), verbose=0) == evaluation
        for expected, weight in zip(one.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(weight, expected)


@pytest.mark.parametrize("count", [3, "auto"])
def test_never_past_the_end_of_an_epoch(count):
    _, history = train(2, 1, steps_per_epoch=5)
    model, received = train(2, count, steps_per_epoch=5)
    assert int(model.optimizer.iterations.numpy()) == 15
    assert received == history


def test_evaluate_never_past_its_steps():
    model, _ = train(2, 4)
    expected = model.evaluate(batches("known length").take(6), verbose=0)
    assert model.evaluate(batches("known length"), steps=6, verbose=0) == expected


class SeesBatches(keras.callbacks.Callback):
    """Collects the step number of the optimizer after every batch."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(int(self.model.optimizer.iterations.numpy()))


def test_auto_does_not_run_ahead_of_a_callback_that_looks_at_batches():
    sees_batches = SeesBatches()
    train(2, "auto", callbacks=[sees_batches])
    assert sees_batches.seen == list(range(1, 31))


def test_auto_runs_ahead_of_others():
    steps = []
    watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)
    model, _ = train(2, "auto", callbacks=[watch])
    original = model.train_function.pace.count
    model.train_function.pace.count = lambda done: (steps.append(done), original(done))
    model.fit(batches("known length"), epochs=3, verbose=0, shuffle=False, callbacks=[watch])
    assert sum(steps) == 30
    assert max(steps) > 1, "every step was an execution of its own"


@pytest.mark.parametrize(
    ("callback", "looks"),
    [
        (keras.callbacks.EarlyStopping("loss"), False),
        (keras.callbacks.ModelCheckpoint("a.keras"), False),
        (keras.callbacks.ModelCheckpoint("a.keras", save_freq=3), True),
        (keras.callbacks.BackupAndRestore("a"), False),
        (keras.callbacks.BackupAndRestore("a", save_freq=3), True),
        (keras.callbacks.LambdaCallback(on_epoch_end=print), False),
        (keras.callbacks.LambdaCallback(on_train_batch_end=print), True),
        (keras.callbacks.TerminateOnNaN(), True),
        (keras.callbacks.ProgbarLogger(), False),
    ],
)
def test_looks_at_batches(callback, looks):
    assert looks_at_batches(callback, "train") is looks
    assert looks_at_batches(keras.callbacks.CallbackList([callback]), "train") is looks


def test_traced_once():
    traces = []

    class Counts(DistributedModel):
        def call(self, inputs):
            traces.append(tf.distribute.get_replica_context() is not None)
            return super().call(inputs)

    model, _ = train(2, 3, base=Counts)
    first = len(traces)
    model.fit(batches("known length"), epochs=2, verbose=0, shuffle=False)
    assert len(traces) == first


class OtherValues(DistributedModel):
    """Returns what a loop cannot hand on from step to step."""

    def train_step(self, data):
        self.optimizer.iterations.assign_add(1)
        return {"loss": tf.constant(1.0), "nothing": None, "rows": tf.ragged.constant([[1], [2, 3]])}


@pytest.mark.parametrize("count", [1, 4])
def test_values_of_any_kind_on_one_replica(count):
    model, history = train(None, count, base=OtherValues)
    assert int(model.optimizer.iterations.numpy()) == 30
    assert history["loss"] == [1.0, 1.0, 1.0]


def test_auto_is_saved(tmp_path):
    model, _ = train(None, "auto")
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").chooses_steps_per_execution
