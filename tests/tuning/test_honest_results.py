"""What failed is never best, never proposed again, and has a reason; a search without a result raises."""

import json
import math

import keras
import numpy as np
import pytest

from mirrored_keras import tuning
from mirrored_keras.tuning.outcomes import NotFiniteError, checked_result
from tuning.searches import Function, build_eager, data, function_search, search


def test_a_search_without_a_completed_trial_shows_the_first_traceback(tmp_path):
    def function(hp):
        x = hp.Float("x", 0, 1)
        raise ValueError(f"x is {x}")

    oracle = tuning.oracles.RandomSearchOracle(max_trials=4, max_consecutive_failed_trials=10, seed=3)
    tuner = Function(oracle, function, directory=tmp_path)
    with pytest.raises(tuning.TuningError) as raised:
        tuner.search(verbose=0)
    first = oracle.trials[oracle.start_order[0]].hyperparameters.values["x"]
    assert f"ValueError: x is {first}" in str(raised.value) and "trials=4 (4 failed)" in str(raised.value)
    for call in (tuner.get_best_hyperparameters, tuner.get_best_models):
        with pytest.raises(tuning.TuningError, match="A search must have a trial that was completed"):
            call()


def test_three_failures_in_a_row_end_a_search_and_its_files_say_so(tmp_path):
    def function(hp):
        if hp.Int("x", 0, 1000) >= 0:
            raise ValueError("too much")

    oracle = tuning.oracles.RandomSearchOracle(max_trials=9, seed=3)
    tuner = Function(oracle, function, directory=tmp_path)
    with pytest.raises(
        tuning.TuningError, match=r"(?s)too many trials fail.*max_consecutive_failed_trials=3.*too much"
    ):
        tuner.search(verbose=0)
    assert len(tuner.calls) == 3
    stored = [json.loads(path.read_text())["status"] for path in tmp_path.glob("*/trial_*/trial.json")]
    assert stored == ["FAILED"] * 3


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("returned", ["number", "dictionary"])
def test_numbers_that_are_not_finite_fail_with_a_reason_and_are_never_best(bad, returned, tmp_path):
    def function(hp):
        x = hp.Choice("x", [1.0, 2.0, 3.0])
        value = bad if x == 2 else x
        return value if returned == "number" else {"default_objective": value, "other": 1.0}

    tuner = function_search(function, tmp_path, oracle=tuning.oracles.GridSearchOracle())
    assert [row["outcome"] for row in tuner.results()] == ["completed", "failed", "completed"]
    assert tuner.results()[1]["reason"] == f"The objective `default_objective` is {bad}."
    assert [hp.values["x"] for hp in tuner.get_best_hyperparameters(3)] == [1.0, 3.0]


def history(**values):
    found = keras.callbacks.History()
    found.history, found.epoch = values, list(range(len(next(iter(values.values())))))
    return found


def test_a_diverged_trial_fails_unless_its_best_epoch_is_asked_for():
    objective = tuning.Objective("val_loss", "min")
    for bad in (math.nan, math.inf):
        diverged = history(val_loss=[0.5, 0.1, bad, bad])
        with pytest.raises(NotFiniteError, match=r"`val_loss` is (nan|inf) from epoch 2 on"):
            checked_result(diverged, objective, diverged="fail")
        assert checked_result(diverged, objective, diverged="best_epoch").history["val_loss"][1] == 0.1
    # weights that are NaN still get some answers right
    with pytest.raises(NotFiniteError, match="`loss` is nan from epoch 1 on"):
        result = history(val_accuracy=[0.5, 0.6], loss=[1.0, math.nan])
        checked_result(result, tuning.Objective("val_accuracy", "max"), diverged="fail")
    late = checked_result(history(val_loss=[math.nan, 0.5]), objective, diverged="fail")
    assert late.history["val_loss"] == [math.inf, 0.5]  # stock: no best epoch, and no reason
    with pytest.raises(NotFiniteError, match="was never a finite number"):
        checked_result(history(val_loss=[math.nan]), objective, diverged="best_epoch")


def test_a_trial_that_diverges_does_not_win(tmp_path):
    class Diverges(tuning.HyperModel):
        def build(self, hp):
            model = build_eager(hp)
            hp.Choice("diverges", [True, False])  # the last one is the first to change
            return model

        def fit(self, hp, model, *args, **options):
            found = model.fit(*args, **options)
            if hp.get("diverges"):
                found.history["val_loss"][0] = 1e-9
                found.history["val_loss"][-1] = math.nan
            return found

    for diverged, expected in (("fail", False), ("best_epoch", True)):
        tuner = tuning.GridSearch(
            Diverges(), "val_loss", max_trials=2, directory=tmp_path / diverged, diverged=diverged
        )
        search(tuner)
        assert tuner.get_best_hyperparameters()[0].values["diverges"] == expected


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_bayesian_search_leaves_what_fails_and_does_not_repeat_it(tmp_path):
    def function(hp):
        v = hp.Float("v", 0, 1, step=0.02)
        if v > 0.5:
            raise ValueError("this half does not work")
        return (v - 0.45) ** 2  # the best values lie beside those that fail

    oracle = tuning.oracles.BayesianOptimizationOracle(
        max_trials=8, num_initial_points=3, seed=1, max_consecutive_failed_trials=100
    )
    tuner = function_search(function, tmp_path, oracle=oracle)
    values = [row["hp.v"] for row in tuner.results()]
    assert len(set(values)) == 8
    assert tuner.outcomes()["failed"] < 5
    assert tuner.get_best_hyperparameters()[0].values["v"] == pytest.approx(0.45, abs=0.15)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_bayesian_search_ends_when_every_value_was_tried(tmp_path):
    oracle = tuning.oracles.BayesianOptimizationOracle(max_trials=20, num_initial_points=2, seed=1)
    tuner = function_search(lambda hp: hp.Choice("x", [3, 1, 2, 5]), tmp_path, oracle=oracle)
    assert sorted(row["hp.x"] for row in tuner.results()) == [1, 2, 3, 5]


def test_a_retry_counts_by_its_own_result(tmp_path):
    attempts = []

    def function(hp):
        attempts.append(hp.Choice("x", [1]))
        return math.nan if len(attempts) == 1 else 7.0

    oracle = tuning.oracles.RandomSearchOracle(max_trials=1, max_retries_per_trial=1, seed=1)
    tuner = function_search(function, tmp_path, oracle=oracle)
    assert len(attempts) == 2 and tuner.results()[0]["score"] == 7.0


def test_errors_that_end_the_search_leave_no_trial_running(tmp_path):
    class ReturnsNothing(tuning.HyperModel):
        def build(self, hp):
            return build_eager(hp)

        def fit(self, hp, model, *args, **options):
            return None

    tuner = tuning.RandomSearch(ReturnsNothing(), "val_loss", max_trials=2, directory=tmp_path)
    with pytest.raises(tuning.errors.FatalTypeError, match="is None"):
        search(tuner)
    assert tuner.outcomes()["failed"] == 1 and tuner.outcomes()["running"] == 0


def test_summary_counts_and_names_reasons(tmp_path, capsys):
    def function(hp):
        if hp.Choice("x", [1.0, 2.0]) == 2:
            raise ValueError("two is too much")
        return 1.0

    tuner = function_search(function, tmp_path, oracle=tuning.oracles.GridSearchOracle())
    capsys.readouterr()
    tuner.results_summary()
    printed = capsys.readouterr().out
    assert "Trials: 1 completed, 1 failed" in printed and "failed: ValueError: two is too much" in printed


def test_all_executions_are_kept_and_whose_weights_are_saved_is_said(tmp_path):
    tuner = tuning.RandomSearch(
        build_eager, "val_loss", max_trials=1, seed=5, executions_per_trial=2, directory=tmp_path / "a"
    )
    rows = search(tuner).results()
    for row in rows:
        assert len(set(row["seeds"])) == 2 and len(set(row["scores"])) == 2
        assert row["score"] == pytest.approx(np.mean(row["scores"]))
        assert row["weights_of"] == int(np.argmin(row["scores"]))
    best = tuner.get_best_models()[0]
    _, _, held_out = data()
    assert best.evaluate(*held_out, verbose=0)[0] == pytest.approx(min(min(row["scores"]) for row in rows), rel=1e-5)
    again = tuning.RandomSearch(
        build_eager, "val_loss", max_trials=1, seed=5, executions_per_trial=2, directory=tmp_path / "b"
    )
    assert search(again).results() == rows  # everything follows from the seed
