"""Every callback that Keras exports, under `fit` on two and three replicas against one: logs, decisions, files."""

import contextlib
import io
import re

import keras
import numpy as np
import pytest
from keras import callbacks

from callbacks.recording import EPOCHS, Run, assert_same_numbers, assert_same_run, server, weights_of
from mirrored_keras import DistributedModel, SetupError
from model.regression import X, Y, made_under, perceptron

pytestmark = pytest.mark.table(every=3)

ORBAX = getattr(callbacks, "OrbaxCheckpoint", None)
AVERAGES = {"use_ema": True, "ema_momentum": 0.7}


def watching(at):
    """Callbacks that only look, or act by a fixed rule: all of them in one training."""
    return [
        callbacks.LearningRateScheduler(lambda epoch, rate: rate * (0.5 if epoch else 1.0)),
        callbacks.CSVLogger(at / "log.csv"),
        callbacks.History(),
        callbacks.ModelCheckpoint(at / "{epoch}-{val_loss:.4f}.keras"),
        callbacks.ModelCheckpoint(at / "{epoch}-{batch}-{loss:.4f}.weights.h5", save_weights_only=True, save_freq=2),
        callbacks.TensorBoard(at, update_freq=1, histogram_freq=1, write_graph=False),
        *callbacks.CallbackList([callbacks.CSVLogger(at / "listed.csv")]).callbacks,
    ]


def deciding(at):
    """Callbacks that act on what they see in validation, in each other's company."""
    return [
        callbacks.ModelCheckpoint(at / "best.keras", monitor="val_loss", save_best_only=True),
        callbacks.ModelCheckpoint(
            at / "{epoch}.weights.h5", save_weights_only=True, save_best_only=True, monitor="val_mae"
        ),
        callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.01),
        callbacks.EarlyStopping("val_loss", patience=2, min_delta=0.01, restore_best_weights=True),
    ]


GROUPS = {
    "watching": (watching, {"optimizer": {"momentum": 0.9}}),
    "deciding": (deciding, {"epochs": 9}),
    "averages in evaluation": (lambda at: [callbacks.SwapEMAWeights()], {"optimizer": AVERAGES}),
    "averages after epochs": (
        lambda at: [
            callbacks.SwapEMAWeights(swap_on_epoch=True),
            callbacks.ModelCheckpoint(at / "{epoch}.weights.h5", save_weights_only=True),
        ],
        {"optimizer": AVERAGES},
    ),
    "nothing": (lambda at: [], {"optimizer": {"momentum": 0.9}}),
}
PROVED_BY = {  # the test that looks at the callback
    "BackupAndRestore": "test_backup_and_restore",
    "CSVLogger": "test_watching",
    "Callback": "test_watching",  # `Events` is one
    "CallbackList": "test_watching",
    "EarlyStopping": "test_deciding",
    "History": "test_watching",
    "LambdaCallback": "test_lambda_callback_and_remote_monitor",
    "LearningRateScheduler": "test_watching",
    "ModelCheckpoint": "test_watching",
    "OrbaxCheckpoint": "test_orbax_checkpoint_is_refused",
    "ProgbarLogger": "test_progress_bar",
    "ReduceLROnPlateau": "test_deciding",
    "RemoteMonitor": "test_lambda_callback_and_remote_monitor",
    "SwapEMAWeights": "test_averages",
    "TensorBoard": "test_watching",
    "TerminateOnNaN": "test_terminate_on_nan",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A function from a group and a number of replicas to its training, each run once."""
    done = {}

    def trained(group, replicas):
        if (group, replicas) not in done:
            make, options = GROUPS[group]
            done[group, replicas] = Run(make, replicas, tmp_path_factory.mktemp("run"), **options)
        return done[group, replicas]

    return trained


@pytest.fixture(params=[2, 3])
def replicas(request):
    return request.param


def test_list_is_complete():
    exported = {name for name in dir(callbacks) if isinstance(getattr(callbacks, name), type)}
    assert exported <= set(PROVED_BY)
    assert set(PROVED_BY.values()) <= set(globals())


def test_watching(run, replicas):
    one, many = run("watching", None), run("watching", replicas)
    files = one.files()
    assert one.history["learning_rate"] == pytest.approx([0.05, 0.025, 0.0125])
    assert (
        list(files["log.csv"])
        == ["epoch", "learning_rate", "loss", "mae", "val_loss", "val_mae"]
        == list(files["listed.csv"])
    )
    assert len([name for name in files if name.endswith(".keras")]) == EPOCHS
    assert len([name for name in files if name.endswith(".h5")]) == 4  # 9 batches, one file for two of them
    events = files["train/events"]
    assert {"batch_loss", "epoch_loss", "epoch_mae", "epoch_learning_rate"} <= {tag.split(",")[0] for tag in events}
    assert any("kernel/histogram" in tag for tag in events)
    assert len([tag for tag in events if tag.startswith("batch_loss")]) == 9
    assert_same_run(one, many)
    assert_same_numbers(one.callbacks[2].history, many.callbacks[2].history, "the callback History")


def test_a_checkpoint_opens(run, replicas):
    many = run("watching", replicas)
    (last,) = many.folder.glob("3-*.keras")
    loaded = keras.models.load_model(last)
    assert_same_numbers(weights_of(many.model), weights_of(loaded), "weights")
    again = loaded.evaluate(X[:5] * 1.1, Y[:5], batch_size=3, verbose=0)
    assert again == pytest.approx([many.history["val_loss"][-1], many.history["val_mae"][-1]], rel=1e-5)


def test_deciding(run, replicas):
    one, many = run("deciding", None), run("deciding", replicas)
    stopper = one.callbacks[3]
    assert 0 < stopper.best_epoch < stopper.stopped_epoch < 8, "it had nothing to do"
    assert len(set(one.history["learning_rate"])) > 1
    assert 2 <= len(one.files()) < 1 + len(one.history["loss"])
    assert (stopper.best_epoch, stopper.stopped_epoch) == (
        many.callbacks[3].best_epoch,
        many.callbacks[3].stopped_epoch,
    )
    assert_same_run(one, many)


@pytest.mark.parametrize("group", ["averages in evaluation", "averages after epochs"])
def test_averages(group, run, replicas):
    one, many = run(group, None), run(group, replicas)
    assert one.history["val_loss"][0] != pytest.approx(run("nothing", None).history["val_loss"][0], rel=1e-3)
    assert_same_run(one, many)
    for called in (lambda r: r.model.evaluate(X, Y, batch_size=7, verbose=0, callbacks=r.callbacks[:1]),):
        np.testing.assert_allclose(called(many), called(one), rtol=1e-5)


def test_lambda_callback_and_remote_monitor(tmp_path):
    seen, epochs = {}, {}
    for replicas in (None, 2, 3):
        noted = seen[replicas] = []
        with server() as (address, epochs[replicas]):
            watchers = [
                callbacks.RemoteMonitor(address, send_as_json=True),
                callbacks.LambdaCallback(
                    on_train_begin=lambda logs, noted=noted: noted.append({"begin": 0.0}),
                    on_train_batch_end=lambda batch, logs, noted=noted: noted.append({"batch": batch, **logs}),
                    on_epoch_end=lambda epoch, logs, noted=noted: noted.append({"epoch": epoch, **logs}),
                    on_train_end=lambda logs, noted=noted: noted.append({"end": 0.0, **logs}),
                ),
            ]
            Run(lambda at, watchers=watchers: watchers, replicas, tmp_path)
    assert len(seen[None]) == 2 + EPOCHS * 4
    assert len(epochs[None]) == EPOCHS and {"epoch", "loss", "val_loss"} <= set(epochs[None][0])
    for replicas in (2, 3):
        for one, many in ((seen[None], seen[replicas]), (epochs[None], epochs[replicas])):
            for number, (a, b) in enumerate(zip(one, many, strict=True)):
                assert_same_numbers(a, b, f"event {number}")


def printed(replicas, folder):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        Run(lambda at: [callbacks.ProgbarLogger()], replicas, folder, verbose=1, epochs=2)
    return text.getvalue()


def test_progress_bar(tmp_path):
    """What stands at the end of an epoch; how often the bar is drawn before depends on the time."""
    one = numbers_printed(printed(None, tmp_path))
    assert [name for name, _ in one] == ["loss", "mae", "val_loss", "val_mae"] * 2
    for replicas in (2, 3):
        many = numbers_printed(printed(replicas, tmp_path))
        assert [name for name, _ in many] == [name for name, _ in one]
        assert [value for _, value in many] == pytest.approx([value for _, value in one], abs=2e-4)


def numbers_printed(text):
    lines = [line for line in re.split(r"[\r\n]", text) if "val_mae" in line]
    return [(name, float(value)) for line in lines for name, value in re.findall(r"(\w+): (-?[\d.]+(?:e-?\d+)?)", line)]


def test_terminate_on_nan(tmp_path):
    x = np.array(X)
    x[9] = np.nan  # in the second batch, on one replica only
    one, *many = (
        Run(lambda at: [callbacks.TerminateOnNaN()], replicas, tmp_path, x=x, validation_data=None)
        for replicas in (None, 2, 3)
    )
    assert [event for event, _ in one.events.seen] == ["batch 0", "batch 1", "epoch 0"]
    for several in many:
        assert [event for event, _ in several.events.seen] == [event for event, _ in one.events.seen]
        assert several.model.stop_training and np.isnan(several.history["loss"][0])
        assert_same_numbers(one.events.seen[0][1], several.events.seen[0][1], "the first batch")


class Interrupted(Exception):
    pass


class InterruptAt(callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise Interrupted


def test_backup_and_restore(run, replicas, tmp_path):
    """An interrupted training goes on, on the same or another number of replicas, as if nothing had been."""
    whole = run("nothing", None)
    optimizer = {"momentum": 0.9}

    def backup(at):
        return [callbacks.BackupAndRestore(at / "backup")]

    with pytest.raises(Interrupted):
        Run(lambda at: [*backup(at), InterruptAt(2)], replicas, tmp_path, optimizer=optimizer)
    resumed = Run(backup, 5 - replicas, tmp_path, optimizer=optimizer)
    assert len(resumed.history["loss"]) == 1, "the first two epochs came from the backup"
    for name, values in resumed.history.items():
        assert values == pytest.approx(whole.history[name][2:], rel=1e-5)
    assert_same_numbers(weights_of(whole.model), weights_of(resumed.model), "weights")


@pytest.mark.skipif(ORBAX is None, reason="Keras 3.12 has no OrbaxCheckpoint")
def test_orbax_checkpoint_is_refused(replicas):
    """Keras' own `set_model` raises a TypeError about a MirroredVariable."""
    model = made_under(replicas, lambda: perceptron(DistributedModel))
    callback = object.__new__(ORBAX)  # its constructor needs a package that Keras does not install
    with pytest.raises(SetupError, match=r"(?s)cannot read the variables of a strategy.*ModelCheckpoint"):
        model.fit(X, Y, verbose=0, callbacks=[callback])
    assert int(model.optimizer.iterations.numpy()) == 0
