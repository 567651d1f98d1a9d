"""The comparison of two trainings, snapshots, and the report, on numbers made by hand."""

import json
import math
import pathlib

import numpy as np
import pytest

from mirrored_keras.parity.comparison import Difference, compare
from mirrored_keras.parity.findings import CAUSES, Finding
from mirrored_keras.parity.report import Report, Run
from mirrored_keras.parity.runs import Trace
from mirrored_keras.parity.snapshots import Snapshots
from mirrored_keras.parity.variables import Label, State

ROOT = pathlib.Path(__file__).resolve().parents[2]
LABELS = [Label("dense/kernel", "weight", "float32"), Label("sgd/dense_kernel_momentum", "optimizer", "float32")]


def trace(*, change=0.0, at=(2, 0, 1), loss=0.0, drift=None):
    """Three steps of a weight that moves by 1 in each, with one number changed."""
    made = Trace("2 replicas", 2, start=State([np.zeros(3, "float32")], [], []), labels=LABELS)
    step_to_change, variable, number = at
    for step in (1, 2, 3):
        values = [np.full(3, float(step), "float32"), np.full(3, 0.5, "float32")]
        if step == step_to_change:
            values[variable][number] += np.float32(change)
        made.values.append(values)
        made.drift.append({} if drift is None or step != 2 else {0: (1, values[0] + np.float32(drift))})
        made.logs.append({"loss": 1.0 + (loss if step == 3 else 0.0)})
    return made


def test_equal_trainings_have_no_difference():
    compared = compare(trace(), trace())
    assert compared.first is None
    assert compared.errors == [0, 0, 0]


@pytest.mark.parametrize(("variable", "path"), [(0, LABELS[0].path), (1, LABELS[1].path)])
def test_the_first_number_beyond_rounding_is_named(variable, path):
    first = compare(trace(), trace(change=1e-3, at=(2, variable, 1))).first
    assert (first.step, first.name, first.index) == (2, path, (1,))
    assert first.difference == pytest.approx(1e-3, rel=1e-2)
    assert first.allowed < 1e-4


def test_rounding_is_no_difference():
    assert compare(trace(), trace(change=5e-7)).first is None


@pytest.mark.parametrize("change", [math.nan, math.inf])
def test_what_is_no_number_differs(change):
    assert compare(trace(), trace(change=change)).first.step == 2


def test_replicas_that_disagree_differ_although_the_first_is_right():
    first = compare(trace(), trace(drift=0.1)).first
    assert (first.step, first.replica) == (2, 1)
    assert "on replica 1" in str(first)


def test_a_loss_alone_is_a_log():
    compared = compare(trace(), trace(loss=1e-3))
    assert (compared.first.kind, compared.first.name, compared.later) == ("log", "loss", {"log"})


def test_noise_that_was_measured_widens_the_tolerance_but_hides_no_defect():
    noise = trace(change=2e-5)
    assert compare(trace(), trace(change=2e-5)).first is not None
    assert compare(trace(), trace(change=2e-5), noise).first is None
    assert compare(trace(), trace(change=1e-2), trace(change=1e-2)).first is not None


def test_snapshots_beyond_the_memory_are_read_back():
    snapshots = Snapshots(largest_in_memory=100)
    for step in range(4):
        snapshots.append([np.full(5, step, "float64"), np.array(step)])
    assert [snapshots[step][0].tolist() for step in range(4)] == [[step] * 5 for step in range(4)]
    assert snapshots[3][1] == 3


def a_report():
    first = Difference(2, "weight", "dense/kernel", (1,), 1.0, 1.5, 1e-6)
    runs = [Run("1 replica", [2.0, 1.0], [0.0, 0.0]), Run("2 replicas", [2.0, math.nan], [0.0, 0.5], first)]
    return Report([Finding("unexplained", "nothing helped", "look", "train.py:3", False)], runs, [9, 4], ["a note"])


def test_text_has_all_parts():
    assert str(a_report()).splitlines() == [
        "DIFFERS: 1 replica, 2 replicas; 2 steps, batches of 9 and 4 rows.",
        "2 replicas: first difference at step 2, weight 'dense/kernel'[1]: 1 on one replica, 1.5 here; difference "
        "5.00e-01, allowed 1.00e-06.",
        "unexplained (suspected): None of the causes that are known explains the difference.",
        "  Evidence: nothing helped",
        "  Line: train.py:3",
        "  What to do: look",
        "Note: a note",
    ]


def test_json_has_all_parts_and_no_nan():
    read = json.loads(a_report().to_json())
    assert not read["passed"]
    assert read["findings"][0]["cause"] == "unexplained"
    assert read["runs"][1]["losses"] == [2.0, None]
    assert read["runs"][1]["first"]["difference"] == 0.5


def test_the_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    a_report().plot(tmp_path / "check.png")
    assert (tmp_path / "check.png").read_bytes().startswith(b"\x89PNG")


def test_every_cause_is_in_the_document():
    text = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    assert not [cause for cause in CAUSES if f"`{cause}`" not in text]
