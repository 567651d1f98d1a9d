"""The command `check`: exit codes, files, and its own CPU devices."""

import json
import subprocess
import sys

import pytest

from mirrored_keras.cli.__main__ import main, make_parser

MODULE = """
import keras, numpy as np, tensorflow as tf
from mirrored_keras import DistributedModel

def build(**options):
    inputs = keras.Input((3,))
    model = DistributedModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", **options)
    return model

def largest(y_true, y_pred):
    return keras.ops.max(keras.ops.abs(y_true - y_pred))

def wrong():
    return build(metrics=[largest])

def data():
    x = np.random.default_rng(0).normal(size=(11, 3)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(4)
"""


def check(folder, *arguments):
    (folder / "own_models.py").write_text(MODULE, encoding="utf-8")
    command = [sys.executable, "-m", "mirrored_keras", "check", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_a_model_that_is_right_passes_and_writes_its_files(tmp_path):
    pytest.importorskip("matplotlib")
    options = ("--replicas", "2,3", "--steps", "3", "--json", "report.json", "--picture", "report.png")
    result = check(tmp_path, "own_models:build", "--data", "own_models:data", *options)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("PASS: 1 replica, 2 replicas, 3 replicas, independent loop; 3 steps")
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["rows"] == [4, 4, 3]
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


def test_a_model_that_differs_is_an_exit_code_of_1(tmp_path):
    result = check(tmp_path, "own_models:wrong", "--replicas", "2", "--steps", "2")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "metric-not-additive" in result.stdout
    assert "Line: own_models.py:12" in result.stdout


def test_a_module_that_is_not_there_is_an_exit_code_of_2(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["check", "no_such_module:build", "--replicas", "2"]) == 2
    assert "Received: no_such_module:build (No module named 'no_such_module')" in capsys.readouterr().err


def test_defaults():
    arguments = make_parser().parse_args(["check", "train:build_fn"])
    assert (arguments.build, arguments.replicas, arguments.steps) == (("train", "build_fn"), (2, 4), 20)
    assert arguments.data is arguments.json is arguments.picture is None


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["train"], "Received: 'train'"),
        (["train:build", "--replicas", "2,x"], "Received: '2,x'"),
        (["train:build", "--steps", "0"], "Received: '0'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, named, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["check", *arguments])
    assert ended.value.code == 2
    assert named in capsys.readouterr().err
