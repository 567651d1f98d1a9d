"""The demo keeps its promises, and notices when one is broken."""

import subprocess
import sys

import numpy as np
import pytest

from mirrored_keras.cli import demo, demo_table
from mirrored_keras.cli.demo_training import Run

ONE = Run("one replica", [2.0, 1.0], 0.97, [np.zeros(3), np.ones(2)])


def like_one(**changes):
    values = {"losses": ONE.losses, "accuracy": ONE.accuracy, "weights": ONE.weights, **changes}
    return Run("DistributedModel, N=2", **values)


def test_nothing_is_broken_when_all_is_equal():
    assert demo.broken_promises(ONE, like_one(), restored_accuracy=0.97) == []


@pytest.mark.parametrize(
    ("changes", "restored", "named"),
    [
        ({"accuracy": 0.95}, 0.95, "accuracy must be above 95%"),
        ({"accuracy": float("nan")}, 0.97, "accuracy must be above 95%"),
        ({}, 0.96, "restored model"),
        ({"weights": [np.zeros(3), np.array([1, 1.001])]}, 0.97, "no weight"),
        ({"weights": [np.zeros(3), np.array([1, np.nan])]}, 0.97, "no weight"),
        ({"losses": [2.0, 1.001]}, 0.97, "no loss"),
        ({"losses": [2.0, np.nan]}, 0.97, "no loss"),
    ],
)
def test_a_broken_promise_is_named(changes, restored, named):
    broken = demo.broken_promises(ONE, like_one(**changes), restored_accuracy=restored)
    assert any(named in sentence and "Received: " in sentence for sentence in broken)


def test_the_table_has_a_line_per_epoch_and_the_largest_difference():
    other = like_one(weights=[np.zeros(3), np.array([1, 1.25])], losses=[2.0, 1.5])
    lines = demo_table.render([ONE, other]).splitlines()
    assert lines[0].split() == ["loss", "in", "epoch", "one", "replica", "DistributedModel,", "N=2"]
    assert lines[2].split() == ["1", "2.000000", "2.000000"]
    assert lines[3].split() == ["2", "1.000000", "1.500000"]
    assert lines[-2].split() == ["held-out", "accuracy", "97.00%", "97.00%"]
    assert lines[-1].split() == ["largest", "weight", "difference", "0", "2.5e-01"]


def test_the_table_says_why_a_training_stopped():
    lines = demo_table.render([ONE, Run("keras.Model, N=3", stopped="SomeError: shapes differ")]).splitlines()
    assert lines[2].split() == ["1", "2.000000", "stopped"]
    assert lines[-1] == "keras.Model, N=3 stopped: SomeError: shapes differ"


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory):
    """A short demo in a process of its own, as a user runs it."""
    output = tmp_path_factory.mktemp("demo") / "new"
    command = [sys.executable, "-m", "mirrored_keras", "demo", "--epochs", "6", "--output", str(output)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240), output


def test_the_demo_passes(demonstration):
    result, _ = demonstration
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1].startswith("PASSED: 2 replicas trained as one")


def test_the_demo_shows_the_progress_bar_of_keras_and_the_table(demonstration):
    result, output = demonstration
    assert "Epoch 6/6" in result.stdout
    assert "15/15" in result.stdout
    table = (output / "table.txt").read_text(encoding="utf-8")
    assert table in result.stdout
    assert table.splitlines()[-1].startswith(demo_table.LAST_ROW)


def test_the_kept_file_is_a_model_with_the_accuracy_shown(demonstration):
    import keras

    from mirrored_keras import DistributedModel
    from mirrored_keras.data import digits_dataset

    result, output = demonstration
    model = keras.models.load_model(
        output / "digits.h5", compile=False, custom_objects={"DistributedModel": DistributedModel}
    )
    correct = sum(
        int(np.sum(np.argmax(model(images), axis=-1) == labels))
        for images, labels in digits_dataset("test", global_batch_size=100)
    )
    assert f"Held-out accuracy: {correct / 364:.2%}" in result.stdout


def test_too_little_training_fails_with_a_line_that_says_so():
    command = [sys.executable, "-m", "mirrored_keras", "demo", "--epochs=1", "--replicas=1", "--batch-size=500"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert result.returncode == 1
    assert "FAILED: the held-out accuracy must be above 95%. Received: accuracy=" in result.stderr
    assert "PASSED" not in result.stdout
