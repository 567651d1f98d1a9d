"""A search goes on after a kill at any moment: from trial 0 on, at the last epoch, with files that were damaged."""

import json
import os
import pathlib
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest

import mirrored_keras
import tolerances
from mirrored_keras import CheckpointError, tuning
from mirrored_keras.tuning.trial_record import TrialRecord
from mirrored_keras.tuning.trial_run import EarlierFailure
from tuning.searches import Function, build, build_eager, data, function_search, search

#: At least 20 for a release; 3 by default, each of which takes seconds.
KILLS = int(os.environ.get("MIRRORED_KERAS_KILLS", "3"))
TUNERS = os.environ.get("MIRRORED_KERAS_KILLED_TUNERS", "RandomSearch").split(",")


@pytest.mark.parametrize("name", TUNERS)
def test_killed_at_any_moment(name, tmp_path):
    package = pathlib.Path(mirrored_keras.__file__).resolve().parents[1]
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    script = pathlib.Path(__file__).with_name("killed_search.py")
    result = subprocess.run(
        [sys.executable, str(script), name, str(tmp_path), str(KILLS)],
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert int(result.stdout.split("killed ")[1]) == KILLS, result.stdout
    parts, whole = (json.loads((tmp_path / part / "rows.json").read_text()) for part in ("parts", "whole"))
    # the same values, executions and scores, to the bit
    assert parts == whole


class Stop(BaseException):
    """As a kill would, leaves no time to write anything."""


def interrupted(folder, at_call, oracle=None, **options):
    """Runs a search that ends in a trial."""
    calls = []

    def function(hp):
        x = hp.Choice("x", [1.0, 5.0, 2.0, 4.0])
        calls.append(x)
        if len(calls) == at_call:
            raise Stop
        return x

    oracle = oracle or tuning.oracles.GridSearchOracle(seed=1)
    with pytest.raises(Stop):
        Function(oracle, function, directory=folder, **options).search(verbose=0)
    return calls


@pytest.mark.parametrize("at_call", [1, 3])
def test_a_search_goes_on_from_trial_0_on(at_call, tmp_path):
    calls = interrupted(tmp_path, at_call)
    later = []

    def function(hp):
        later.append(hp.Choice("x", [1.0, 5.0, 2.0, 4.0]))
        return later[-1]

    tuner = function_search(function, tmp_path, oracle=tuning.oracles.GridSearchOracle(seed=1))
    # finished trials are not run again; the grid goes on at its place (stock: it ends)
    assert [*calls[:-1], *later] == [1.0, 5.0, 2.0, 4.0]
    assert [row["score"] for row in tuner.results()] == [1.0, 5.0, 2.0, 4.0]


def goes_on(folder):
    tuner = function_search(
        lambda hp: hp.Choice("x", [1.0, 5.0, 2.0, 4.0]), folder, oracle=tuning.oracles.GridSearchOracle()
    )
    return [row["score"] for row in tuner.results()]


@pytest.mark.parametrize("name", ["oracle.json", "tuner0.json", "trial_0000/trial.json"])
@pytest.mark.parametrize("damage", [lambda text: text[: len(text) // 2], lambda text: ""], ids=["half", "empty"])
def test_a_damaged_file_is_restored_from_its_copy(name, damage, tmp_path):
    interrupted(tmp_path, 3)
    path = tmp_path / "untitled_project" / name.replace("0000", trial_name(tmp_path))
    path.write_text(damage(path.read_text()))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert goes_on(tmp_path) == [1.0, 5.0, 2.0, 4.0]
    assert [str(one.message) for one in seen if f"{path.name} was damaged" in str(one.message)]


def trial_name(folder):
    return min(path.name for path in folder.glob("*/trial_*")).removeprefix("trial_")


def test_a_damaged_file_without_a_copy_is_named(tmp_path):
    interrupted(tmp_path, 3)
    path = tmp_path / "untitled_project" / "oracle.json"
    path.write_text(path.read_text()[:40])
    path.with_name(".oracle.json.copy").unlink()
    with pytest.raises(CheckpointError, match=r"JSON files that are whole.*\n.*oracle\.json', size=40 bytes"):
        goes_on(tmp_path)


def test_a_trial_that_the_oracle_did_not_hear_of_is_forgotten(tmp_path):
    """Killed between the two files that begin a trial."""
    interrupted(tmp_path, 2)
    project = tmp_path / "untitled_project"
    first = trial_name(tmp_path)
    stray = project / f"trial_{int(first) + 2:0{len(first)}d}"
    stray.mkdir()
    text = (project / f"trial_{first}" / "trial.json").read_text()
    (stray / "trial.json").write_text(text.replace(f'"{first}"', f'"{stray.name[6:]}"'))
    assert goes_on(tmp_path) == [1.0, 5.0, 2.0, 4.0]


def test_a_trial_that_ended_before_the_oracle_wrote_so_is_not_run_again(tmp_path):
    """Killed between the two files that end a trial."""
    interrupted(tmp_path, 2)
    path = max((tmp_path / "untitled_project").glob("trial_*/trial.json"))
    state = json.loads(path.read_text())
    metrics = json.loads(min(path.parents[1].glob("trial_*/trial.json")).read_text())["metrics"]
    state.update(status="COMPLETED", score=77.0, best_step=0, metrics=metrics)
    path.write_text(json.dumps(state))
    assert goes_on(tmp_path) == [1.0, 77.0, 2.0, 4.0]


def test_what_was_noted_before_a_kill_is_not_done_again(tmp_path):
    """Killed after the last execution, or after a failure, and before the oracle heard of it."""
    tuner = tuning.RandomSearch(build_eager, "val_loss", max_trials=2, seed=2, directory=tmp_path)
    done, failed = (tuner.oracle.create_trial(name) for name in ("one", "other"))
    record = TrialRecord(tuner.get_trial_dir(done.trial_id))
    record.finish_execution(0, {"val_loss": 0.25})
    record.end("completed")
    assert tuner.run_trial(done) == [{"val_loss": 0.25}]
    TrialRecord(tuner.get_trial_dir(failed.trial_id)).fail("failed", "this is why")
    with pytest.raises(EarlierFailure, match="this is why"):
        tuner.run_trial(failed)


def test_hyperband_goes_on_exactly_where_the_trial_before_ended(tmp_path):
    """With momentum and a learning rate that falls: as one `fit` over all epochs."""
    x, y, held_out = data()
    callbacks = [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7)]
    options = {"batch_size": 16, "validation_data": held_out, "shuffle": False, "verbose": 0}
    tuner = tuning.Hyperband(build_eager, "val_loss", max_epochs=2, factor=2, seed=2, directory=tmp_path)
    tuner.search(x, y, callbacks=callbacks, **options)
    trial = next(t for t in tuner.oracle.trials.values() if "tuner/trial_id" in t.hyperparameters.values)
    past = trial.hyperparameters.values["tuner/trial_id"]
    seed = TrialRecord(tuner.get_trial_dir(past)).content["seeds"]["0"]
    model = tuner.build_trial(trial.hyperparameters, seed=seed)
    history = model.fit(x, y, epochs=2, callbacks=callbacks, **options)
    stored = TrialRecord(tuner.get_trial_dir(trial.trial_id)).content["results"]["0"]["value"]
    for name, values in history.history.items():
        assert stored[name] == pytest.approx(values, rel=1e-6), name
    best = tuner.load_model(trial)
    assert int(best.optimizer.iterations.numpy()) in (4, 8)
    # of what may not be continued, no state is left
    assert not list(tmp_path.rglob("state-*.h5"))


def test_best_models_train_on_with_their_optimizer_under_any_strategy(make_strategy, tmp_path):
    tuner = tuning.RandomSearch(build, "val_loss", max_trials=1, seed=2, directory=tmp_path)
    search(tuner, epochs=1)
    x, y, _ = data()
    weights = []
    for strategy in (None, make_strategy(2)):
        (model,) = tuner.get_best_models(strategy=strategy)
        model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
        assert int(model.optimizer.iterations.numpy()) == 8
        weights.append(np.concatenate([np.ravel(w.numpy()) for w in model.trainable_variables]))
    assert model.distribute_strategy.num_replicas_in_sync == 2
    assert np.abs(weights[0] - weights[1]).max() < tolerances.weights(8)


def test_a_damaged_checkpoint_is_passed_over(tmp_path, caplog):
    tuner = tuning.RandomSearch(build_eager, "val_loss", max_trials=2, seed=2, directory=tmp_path, keep_checkpoints=2)
    search(tuner, epochs=1)
    first, second = tuner.oracle.get_best_trials(2)
    path = pathlib.Path(tuner.get_trial_dir(first.trial_id), "checkpoint.weights.h5")
    path.write_bytes(path.read_bytes()[:2000])
    (model,) = tuner.get_best_models()
    _, _, held_out = data()
    assert model.evaluate(*held_out, verbose=0)[0] == pytest.approx(second.score, rel=1e-5)
    assert f"trial {first.trial_id} is passed over" in caplog.text


def test_checkpoints_of_the_best_trials_are_kept(tmp_path):
    tuner = tuning.RandomSearch(build_eager, "val_loss", max_trials=3, seed=2, directory=tmp_path, keep_checkpoints=1)
    search(tuner, epochs=1)
    (best,) = tuner.oracle.get_best_trials(1)
    (kept,) = tmp_path.rglob("checkpoint.weights.h5")
    assert kept.parent.name == f"trial_{best.trial_id}"
    assert len(tuner.get_best_models()) == 1
    with pytest.raises(CheckpointError, match="keep_checkpoints=1"):
        tuner.get_best_models(2)
