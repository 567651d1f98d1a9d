"""`mirrored-keras doctor` as a user runs it: text, JSON, exit codes; devices and sums in a process of its own."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from mirrored_keras.cli import doctor
from mirrored_keras.cli.__main__ import main
from mirrored_keras.doctor import Finding, Report

TESTS = pathlib.Path(__file__).parents[1]


@pytest.fixture
def healthy(monkeypatch):
    """Leaves out the other process, which one test below runs."""
    monkeypatch.setattr("mirrored_keras.doctor.environment_findings", lambda **_: Report({"Python": "3"}, ()))


def test_environment_of_this_machine():
    """Two replicas really sum, in the process that the command starts; nothing says where files lie."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    result = subprocess.run(
        [sys.executable, "-m", "mirrored_keras", "doctor", "--replicas", "3", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    report = json.loads(result.stdout)
    assert (result.returncode, report["passed"]) == (0, True), result.stdout
    (sums,) = [finding for finding in report["findings"] if finding["subject"] == "collectives"]
    assert "3 replicas on CPU:0, CPU:1, CPU:2 summed 7" in sums["reason"]
    assert report["facts"]["CUDA_VISIBLE_DEVICES"] == "-1"
    assert str(TESTS.parent) not in result.stdout


def test_an_environment_with_an_error_ends_with_1(capsys, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    assert main(["doctor", "doctor.planted:clean"]) == 1
    output = capsys.readouterr().out
    assert "[error] TF_CONFIG" in output and "1 error" in output
    assert "replicas tried" not in output, "nothing else is tried in a broken environment"


@pytest.mark.parametrize(
    ("function", "code", "part"),
    [
        ("clean", 0, "nothing found that depends on their number"),
        ("in_own_scope", 0, "nothing found that depends on their number"),
        ("stock", 1, "[error] class of the model"),
        ("fails", 1, "ValueError in fails, line"),
        ("no_model", 1, "It returned int"),
    ],
)
def test_a_model(function, code, part, healthy, capsys):
    assert main(["doctor", f"doctor.planted:{function}", "--replicas", "2"]) == code
    assert part in capsys.readouterr().out


def test_data(healthy, capsys):
    assert main(["doctor", "doctor.planted:clean", "--data", "doctor.planted:batches", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]


@pytest.mark.parametrize(
    ("target", "part"),
    [
        ("no_such_module:build", "No module named 'no_such_module'"),
        ("doctor.planted:nothing", "no attribute 'nothing'"),
        ("doctor.planted:keras.__version__", "it cannot be called"),
    ],
)
def test_wrong_arguments_end_with_2(target, part, healthy, capsys):
    assert main(["doctor", target]) == 2
    assert part in capsys.readouterr().err


def test_a_name_without_a_function(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "planted"])
    assert ended.value.code == 2
    assert "the name of a module and of a function" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["0", "two"])
def test_a_wrong_number_of_replicas(number, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--replicas", number])
    assert ended.value.code == 2
    assert "whole number, 1 or more" in capsys.readouterr().err


def test_the_text_is_that_of_the_report(healthy, capsys, monkeypatch):
    report = Report({}, (Finding("warning", "a", "b", "c"),))
    monkeypatch.setattr("mirrored_keras.doctor.environment_findings", lambda **_: report)
    assert main(["doctor"]) == 0, "warnings are no errors"
    assert capsys.readouterr().out == f"{report}\n"
    assert doctor.SUMMARY
