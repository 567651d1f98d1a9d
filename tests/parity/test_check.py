"""`check` names the cause of every planted bug, and passes on models that are right."""

import json

import keras
import numpy as np
import pytest

from devices import strategy_for
from mirrored_keras import DistributedModel
from mirrored_keras.errors import BatchError, SetupError
from mirrored_keras.parity import check, synthetic_data
from parity import clean_models, planted_models
from parity.planted_models import DATA, PLANTED

# Warnings are part of what is planted; `check` keeps them from the caller.
ROWS = np.random.default_rng(0).normal(size=(14, 4)).astype("float32")
BATCHES = [(ROWS[a:b], ROWS[a:b, :3]) for a, b in ((0, 9), (9, 10), (10, 14))]


def line_of(place):
    path, _, number = place.rpartition(":")
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()[int(number) - 1]


@pytest.mark.table(every=4)
@pytest.mark.parametrize("build", PLANTED, ids=lambda build: build.__name__)
def test_a_planted_bug_is_named(build):
    report = check(build, replicas=(2,), steps=2)
    assert not report.passed
    assert [finding.cause for finding in report.findings] == [PLANTED[build]], str(report)
    with open(planted_models.__file__, encoding="utf-8") as file:
        is_marked = any(
            "# planted" in line
            for line in file.read().partition(f"def {build.__name__}(")[2].split("\ndef ")[0].split("\n")
        )
    if is_marked:
        assert "# planted" in line_of(report.findings[0].place)


@pytest.mark.table(every=2)
@pytest.mark.parametrize("make", DATA, ids=lambda make: make.__name__)
def test_data_that_change_are_named(make):
    report = check(clean_models.functional, replicas=(2,), steps=2, data=make)
    assert [finding.cause for finding in report.findings] == [DATA[make]]
    assert all(run.first is None for run in report.runs), "the model itself is right"


@pytest.mark.table(every=4)
@pytest.mark.parametrize("build", clean_models.MODELS, ids=lambda build: build.__name__)
def test_a_model_that_is_right_passes(build):
    data = BATCHES if build is clean_models.subclassed else None  # it does not know its inputs
    report = check(build, replicas=(3,), steps=3, data=data)
    assert report.passed, str(report)
    assert len(report.runs[1].errors) == 3


def test_the_first_step_variable_and_number_are_named(tmp_path):
    """The counter of rows differs after the first step, on every number of replicas, and nothing else does."""
    report = check(planted_models.counter, replicas=(2,), steps=2, data=BATCHES)
    (finding,) = report.findings
    first = report.runs[1].first
    assert (first.step, first.kind, first.index, first.one) == (1, "state", (), 9)
    assert first.name.endswith("/rows")
    assert first.other == pytest.approx(5 * 5 / 9 + 4 * 4 / 9)  # the mean over rows of 5 and 4
    assert f"{finding.cause}: {finding.title}" in str(report)
    assert json.loads(report.to_json())["runs"][1]["first"]["step"] == 1


def test_two_causes_at_once_are_both_named():
    report = check(planted_models.batch_norm_and_dropout, replicas=(2,), steps=2)
    assert {finding.cause for finding in report.findings} == {"batch-norm-not-synchronised", "random-layers"}


def test_made_up_rows_weights_and_masks_are_unequal():
    batches = synthetic_data.make(clean_models.masked_lstm(), steps=4, replicas=(2, 4), seed=1)
    assert [len(x) for x, _, _ in batches] == [13, 13, 13, 3]
    x, _, weights = batches[0]
    lengths = (x != 0).sum(axis=1)
    assert len(set(lengths)) >= 3
    assert weights.shape == (13, 1)
    assert (weights == 0).any() and len(np.unique(weights)) > 5


def test_what_cannot_be_made_up_is_asked_for():
    with pytest.raises(SetupError, match=r"Received: it has no inputs yet(.|\n)*data=make_dataset"):
        check(clean_models.subclassed, replicas=(2,), steps=2)


@pytest.mark.parametrize("data", [[], [np.zeros(())], [(ROWS[:3], ROWS[:2])]], ids=["none", "scalar", "unequal"])
def test_data_that_are_no_global_batches_are_refused(data):
    with pytest.raises(BatchError, match="The data of a check are global batches"):
        check(clean_models.functional, replicas=(2,), steps=2, data=data)


@pytest.mark.parametrize("arguments", [{"replicas": ()}, {"replicas": (0,)}, {"steps": 0}, {"steps": 1.5}])
def test_wrong_numbers_are_refused(arguments):
    with pytest.raises(SetupError, match="at least one number of replicas and one step"):
        check(clean_models.functional, **arguments)


def test_a_model_that_is_not_compiled_is_refused():
    with pytest.raises(SetupError, match="Received: Sequential, not compiled"):
        check(lambda: keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), replicas=(2,))


def test_the_strategies_of_other_code_still_work():
    check(clean_models.own_loss, replicas=(2,), steps=1)
    with strategy_for(2).scope():
        inputs = keras.Input((4,))
        model = DistributedModel(inputs, keras.layers.Dense(3)(inputs))
        model.compile("sgd", "mse")
    assert np.isfinite(model.train_on_batch(ROWS[:3], ROWS[:3, :3]))
