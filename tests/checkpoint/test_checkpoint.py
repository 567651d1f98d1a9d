"""Checkpoints while a model trains: files that are kept, restored, damaged, and those of other models."""

import pathlib
import shutil

import keras
import numpy as np
import pytest

from checkpoint.sources import fit_arrays
from checkpoint.training import InterruptAfter, Interrupted, Models, arrays, build, largest_error, numbers_of
from mirrored_keras import Checkpoint, CheckpointError, DistributedModel, Resume, SetupError, policies

FORMATS = (".keras", ".weights.h5", ".h5", "tf")
KEEP = policies.latest(2) | policies.best(1, "val_loss")
fit = fit_arrays(validation_split=0.3, epochs=3)


@pytest.fixture(scope="module")
def models():
    return Models()


def positions(checkpoint):
    return [(saved.epoch, saved.step) for saved in checkpoint.saved()]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("replicas", [None, 2])
def test_saved_and_restored(form, replicas, models, tmp_path):
    checkpoint = Checkpoint(tmp_path, save=policies.every_steps(3) | policies.every_epochs(1), keep=KEEP, format=form)
    model = models.fresh(replicas)
    history = fit(model, [checkpoint])
    trained = numbers_of(model)
    best = 1 + int(np.argmin(history.history["val_loss"]))
    assert positions(checkpoint)[-2:] == [(2, 3), (3, 0)]
    assert best in [saved.epoch for saved in checkpoint.saved()]
    for other in (None, 2):
        restored = models.spoilt(other)
        assert checkpoint.restore_latest(restored)[:2] == (3, 0)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(numbers_of(restored), trained, strict=True))
    restored = models.spoilt(None)
    assert Checkpoint(tmp_path, keep=KEEP, format=form).restore_best(restored)[:2] == (best, 0)
    x, y, weight = (part[-7:] for part in arrays())
    logs = restored.evaluate(x, y, sample_weight=weight, batch_size=4, return_dict=True, verbose=0)
    assert logs["loss"] == pytest.approx(min(history.history["val_loss"]), rel=1e-6)


def damage(path, how):
    path = pathlib.Path(path)
    if path.is_dir():
        path = next(path.glob("*.data*"))
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes({"bit": content, "truncated": content[:100], "empty": b""}[how])


@pytest.mark.parametrize("how", ["bit", "truncated", "empty"])
@pytest.mark.parametrize("form", FORMATS)
def test_a_damaged_checkpoint_is_passed_over(form, how, models, tmp_path):
    checkpoint = Checkpoint(tmp_path, format=form)
    fit(models.fresh(None), [checkpoint])
    damage(checkpoint.saved()[-1].path, how)
    with pytest.warns(UserWarning, match="A damaged checkpoint was passed over"):
        assert checkpoint.restore_latest(models.spoilt(None)).epoch == 2
    for saved in checkpoint.saved()[:-1]:
        damage(saved.path, how)
    with pytest.raises(CheckpointError, match="there must be a checkpoint in it that can be read"):
        checkpoint.restore_latest(models.spoilt(None))


def deeper():
    inputs = keras.Input((5,))
    hidden = keras.layers.Dense(6, activation="tanh")(inputs)
    model = DistributedModel(inputs, keras.layers.Dense(1)(hidden))
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.mark.parametrize("form", FORMATS)
def test_another_model_is_refused_and_stays_as_it_is(form, models, tmp_path):
    checkpoint = Checkpoint(tmp_path, format=form)
    fit(models.fresh(None), [checkpoint])
    for other in (build(None, optimizer="sgd"), deeper()):
        before = numbers_of(other)
        with pytest.raises(CheckpointError, match="same architecture and optimizer, all of it or nothing") as error:
            checkpoint.restore_latest(other)
        assert "but" in str(error.value)
        assert largest_error(numbers_of(other), before) == 0


def test_an_empty_folder(models, tmp_path):
    with pytest.raises(CheckpointError, match="checkpoints=0"):
        Checkpoint(tmp_path).restore_latest(models.fresh(None))


def test_a_folder_of_another_training(models, tmp_path):
    checkpoint = Checkpoint(tmp_path, format=".weights.h5")
    fit(models.fresh(None), [checkpoint])
    with pytest.raises(CheckpointError, match="belongs to one training"):
        fit(models.fresh(None), [Checkpoint(tmp_path, format=".weights.h5")])
    model = models.fresh(None)
    saved = checkpoint.restore_latest(model)
    fit_arrays(epochs=4, initial_epoch=saved.epoch)(model, [Checkpoint(tmp_path, format=".weights.h5")])
    assert positions(checkpoint) == [(2, 0), (3, 0), (4, 0)]


def test_the_list_is_that_of_the_files(models, tmp_path):
    keep = policies.latest(9) | policies.best(1, "val_loss")
    checkpoint = Checkpoint(tmp_path, keep=keep, format=".weights.h5")
    history = fit(models.fresh(None), [checkpoint])
    pathlib.Path(checkpoint.saved()[0].path).unlink()
    (tmp_path / "notes.txt").write_text("mine")
    shutil.copytree(tmp_path, tmp_path / "copy")
    saved = Checkpoint(tmp_path / "copy", keep=keep, format=".weights.h5").saved()
    assert [one.epoch for one in saved] == [2, 3]
    assert [one.metrics["val_loss"] for one in saved] == history.history["val_loss"][1:]


def test_a_monitored_name_that_is_not_there(models, tmp_path):
    checkpoint = Checkpoint(tmp_path, keep=policies.best(1, "val_acc"), format=".weights.h5")
    with pytest.warns(UserWarning, match=r"looks for \['val_acc'\] in the logs"):
        fit(models.fresh(None), [checkpoint])


def test_with_resume(models, tmp_path):
    def callbacks(name):
        return Checkpoint(tmp_path / name, save=policies.every_steps(4), format=".weights.h5", keep=policies.latest(9))

    one = callbacks("one")
    fit(models.fresh(None), [Resume(tmp_path / "state one"), one])
    two = callbacks("two")
    with pytest.raises(Interrupted):
        fit(models.fresh(None), [Resume(tmp_path / "state two", every_steps=1), two, InterruptAfter(5)])
    two = callbacks("two")
    fit(models.spoilt(None), [Resume(tmp_path / "state two"), two])
    assert positions(one) == positions(two) and positions(one)


def test_arguments(tmp_path):
    with pytest.raises(SetupError, match="`format` is one of"):
        Checkpoint(tmp_path, format=".pt")
    with pytest.raises(SetupError, match="are policies, which a bar joins"):
        Checkpoint(tmp_path, keep=3)
    with pytest.raises(SetupError, match="The best checkpoint is that of the first"):
        Checkpoint(tmp_path).restore_best(None)
