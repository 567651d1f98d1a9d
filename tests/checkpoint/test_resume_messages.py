"""What `Resume` refuses or warns about, and what it does with damaged files."""

import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from checkpoint.sources import Batches, fit_arrays, fit_data
from checkpoint.training import Forgetful, InterruptAfter, Interrupted, Models, arrays, build, dataset, numbers_of
from mirrored_keras import CheckpointError, Resume, SetupError


@pytest.fixture(scope="module")
def models():
    return Models()


def interrupted(model, fit, folder, *, after, **options):
    with pytest.raises(Interrupted):
        fit(model, [Resume(folder, every_steps=1, **options), InterruptAfter(after)])


def states(folder):
    return sorted(path.name for path in folder.glob("state-*.h5"))


def test_the_newest_states_are_kept(models, tmp_path):
    interrupted(models.fresh(None), fit_arrays(), tmp_path, after=8, keep=3)
    assert states(tmp_path) == [
        "state-000001-000000000.h5",
        "state-000001-000000001.h5",
        "state-000001-000000002.h5",
    ]


@pytest.mark.parametrize("damage", ["truncated", "one bit", "empty"])
def test_a_damaged_state_is_set_aside(damage, models, tmp_path):
    expected, _, _ = models.whole(None, fit_arrays(), tmp_path / "whole")
    folder = tmp_path / "parts"
    interrupted(models.fresh(None), fit_arrays(), folder, after=8)
    newest = sorted(folder.glob("state-*.h5"))[-1]
    content = bytearray(newest.read_bytes())
    if damage == "one bit":
        content[len(content) // 2] ^= 1
    newest.write_bytes({"truncated": content[: len(content) // 2], "one bit": content, "empty": b""}[damage])
    model = models.spoilt(None)
    with pytest.warns(UserWarning, match="cannot be read .* was renamed to state-000001-000000002.h5.damaged"):
        fit_arrays()(model, [Resume(folder)])
    assert all(a.tobytes() == b.tobytes() for a, b in zip(numbers_of(model), expected, strict=True))


def test_only_damaged_states(models, tmp_path):
    interrupted(models.fresh(None), fit_arrays(), tmp_path, after=3)
    for path in tmp_path.glob("state-*.h5"):
        path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="must have one that can be read"):
        fit_arrays()(models.spoilt(None), [Resume(tmp_path)])


def wider(replicas, units=7):
    inputs = keras.Input((5,))
    from mirrored_keras import DistributedModel

    model = DistributedModel(inputs, keras.layers.Dense(1)(keras.layers.Dense(units)(inputs)))
    model.compile("adam", "mse")
    return model


MISMATCHES = {
    "rows": (lambda models: models.fresh(None), fit_data(Batches), "kind='py_dataset', but 'arrays'"),
    "batch size": (lambda models: models.fresh(None), fit_arrays(batch_size=5), "batch_size=5, but 4"),
    "steps": (lambda models: models.fresh(None), fit_arrays(steps_per_epoch=3), "steps_per_epoch=3, but None"),
    "shuffle": (lambda models: models.fresh(None), fit_arrays(shuffle=False), "shuffle=False, but True"),
    "optimizer": (lambda models: build(None, optimizer="sgd"), fit_arrays(), "optimizer='SGD', but 'Adam'"),
    "architecture": (lambda models: wider(None), fit_arrays(), "layers, but 5"),
    "executions": (
        lambda models: build(None, steps_per_execution=2),
        fit_arrays(),
        "steps_per_execution=2, but 1, after 3 steps",
    ),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_another_training_is_refused(name, models, tmp_path):
    interrupted(models.fresh(None), fit_arrays(), tmp_path, after=3)
    make, fit, received = MISMATCHES[name]
    model = make(models)
    with pytest.raises(CheckpointError) as error:
        fit(model, [Resume(tmp_path)])
    assert str(error.value).startswith("Training goes on from a state of the same training: ")
    assert received in str(error.value)
    assert 'Resume("another_folder")' in str(error.value)


def test_another_number_of_rows_is_refused(models, tmp_path):
    interrupted(models.fresh(None), fit_data(lambda: dataset(22)), tmp_path, after=3)
    with pytest.raises(CheckpointError, match="batches=5, but 6"):
        fit_data(lambda: dataset(20))(models.fresh(None), [Resume(tmp_path)])


def test_another_seed_of_the_data_is_refused(models, tmp_path):
    interrupted(models.fresh(None), fit_data(dataset), tmp_path, after=3)
    other = fit_data(lambda: tf.data.Dataset.from_tensor_slices(arrays()).shuffle(22, seed=8).batch(4).prefetch(1))
    with pytest.raises(CheckpointError, match=r"seeds\[1\]=8, but 7"):
        other(models.fresh(None), [Resume(tmp_path)])


def rows_of_arrays():
    return tf.data.Dataset.from_tensor_slices(arrays())


def noisy(x, y, weight):
    return x + tf.random.normal(tf.shape(x)), y, weight


def with_option():
    options = tf.data.Options()
    options.deterministic = False
    return dataset().with_options(options)


UNORDERED = {
    "no seed": (lambda: rows_of_arrays().shuffle(22).batch(4), "a shuffle without a seed"),
    "random map": (lambda: dataset().map(noisy), "the random operation RandomStandardNormal, without a seed"),
    "parallel": (
        lambda: dataset().map(lambda *row: row, num_parallel_calls=2, deterministic=False),
        "`deterministic=False` of ParallelMapDatasetV2",
    ),
    "option": (with_option, "`options.deterministic` is False"),
}


@pytest.mark.parametrize("name", UNORDERED)
def test_an_order_that_cannot_be_had_again(name, models, tmp_path):
    make, reason = UNORDERED[name]

    def unseeded():
        tf.random.set_seed(None)  # with a seed for everything, what has none has one
        return make()

    with pytest.warns(UserWarning, match="cannot enter an epoch in the middle") as warned:
        interrupted(models.fresh(None), fit_data(unseeded), tmp_path, after=8)
    assert any(reason in str(one.message) for one in warned)
    assert states(tmp_path) == ["state-000001-000000000.h5"]
    with pytest.warns(UserWarning, match="cannot enter an epoch in the middle"):
        history = fit_data(unseeded)(models.spoilt(None), [Resume(tmp_path)])
    assert history.epoch == [0, 1, 2]


def test_a_generator(models, tmp_path):
    def batches():
        while True:
            yield tuple(part[:4] for part in arrays())

    fit = fit_data(batches, steps_per_epoch=3)
    with pytest.warns(UserWarning, match="GeneratorData, which cannot be read again"):
        interrupted(models.fresh(None), fit, tmp_path, after=4)
    with pytest.warns(UserWarning, match="cannot enter an epoch"):
        assert fit(models.spoilt(None), [Resume(tmp_path)]).epoch == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "received"),
    [
        ({"every_steps": 0}, "every_steps=0"),
        ({"every_minutes": -1.0}, "every_minutes=-1.0"),
        ({"keep": None}, "keep=None"),
    ],
)
def test_arguments(options, received):
    with pytest.raises(SetupError, match="is a positive number") as error:
        Resume("folder", **options)
    assert received in str(error.value)


def test_a_model_of_keras_is_refused(tmp_path):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(SetupError, match="needs the `fit` of a `DistributedModel`"):
        model.fit(*arrays()[:2], verbose=0, callbacks=[Resume(tmp_path)])


def test_callbacks_that_are_gone(models, tmp_path):
    fit = fit_arrays(epochs=2)
    fit(models.fresh(None), [Resume(tmp_path), keras.callbacks.EarlyStopping("loss")])
    with pytest.warns(UserWarning, match=r"callbacks that this `fit` does not have: \['EarlyStopping'\]"):
        fit(models.spoilt(None), [Resume(tmp_path)])


class Signalled(Forgetful):
    def __init__(self, number, steps):
        super().__init__()
        self.number, self.left = number, steps

    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_writes_a_state_after_the_step(number, models, tmp_path):
    def stop(received, frame):
        raise KeyboardInterrupt

    before = signal.signal(number, stop)
    expected, _, _ = models.whole(None, fit_arrays(), tmp_path / "whole")
    try:
        with pytest.raises(KeyboardInterrupt):
            fit_arrays()(models.fresh(None), [Resume(tmp_path / "parts"), Signalled(number, 9)])
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)
    assert states(tmp_path / "parts")[-1] == "state-000001-000000003.h5"
    model = models.spoilt(None)
    fit_arrays()(model, [Resume(tmp_path / "parts")])
    assert all(a.tobytes() == b.tobytes() for a, b in zip(numbers_of(model), expected, strict=True))


def test_time(models, tmp_path):
    fit = fit_arrays(epochs=1)
    with pytest.raises(Interrupted):
        fit(models.fresh(None), [Resume(tmp_path, every_minutes=1e-9), InterruptAfter(3)])
    assert states(tmp_path) == ["state-000000-000000002.h5", "state-000000-000000003.h5"]
    assert np.isfinite(numbers_of(models.fresh(None))[0]).all()


def test_two_of_them(models, tmp_path):
    with pytest.raises(SetupError, match="it has one `Resume`"):
        fit_arrays()(models.fresh(None), [Resume(tmp_path / "a"), Resume(tmp_path / "b")])
