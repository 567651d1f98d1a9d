"""Findings about environments that this machine does not have."""

import json
import sys

import pytest

from mirrored_keras.doctor import Finding, Report, environment
from mirrored_keras.doctor.findings import joined
from mirrored_keras.doctor.probing import MARK, findings_of, probe

TESTED = {"tensorflow": "2.21.0", "keras": "3.15.1", "keras-tuner": "1.4.8", "Python": "3.12.1"}
VERSIONS = dict.fromkeys(environment.installed_versions(), "9.9.9") | TESTED
ANSWER = {
    "installed": [],
    "visible": [],
    "free": [],
    "gpus": [],
    "cores": 2,
    "cpus": 2,
    "inter_op_threads": 8,
    "memory_growth": [],
}


def severities(findings):
    return {finding.subject: finding.severity for finding in findings}


def test_versions_in_the_tested_range():
    expected = dict.fromkeys((f"{name} {version}" for name, version in TESTED.items()), "ok")
    assert severities(environment.version_findings(VERSIONS)) == expected


@pytest.mark.parametrize(
    ("change", "subject", "severity", "fix"),
    [
        ({"keras": "3.11.3"}, "keras 3.11.3", "error", 'pip install --upgrade "keras>=3.12"'),
        ({"keras": "3.16.0"}, "keras 3.16.0", "warning", 'pip install "keras==3.15.*"'),
        ({"tensorflow": "2.20.0"}, "tensorflow 2.20.0", "error", 'pip install --upgrade "tensorflow>=2.21"'),
        ({"Python": "3.14.0"}, "Python 3.14.0", "warning", "python3.13 -m venv .venv"),
        ({"keras-tuner": "1.3.5"}, "keras-tuner 1.3.5", "warning", 'pip install --upgrade "keras-tuner>=1.4"'),
        ({"tensorflow": None}, "tensorflow", "error", "pip install tensorflow"),
        ({"keras-tuner": None}, "keras-tuner", "warning", "pip install keras-tuner"),
        ({"matplotlib": None}, "matplotlib", "note", "pip install matplotlib"),
    ],
)
def test_versions(change, subject, severity, fix):
    findings = environment.version_findings(VERSIONS | change)
    (finding,) = [one for one in findings if one.severity != "ok"]
    assert (finding.subject, finding.severity, finding.fix) == (subject, severity, fix)


def config(index=0, kind="worker", workers=("a:1", "b:1")):
    return json.dumps({"cluster": {"worker": list(workers)}, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize(
    ("variables", "severity", "part"),
    [
        ({"TF_CONFIG": "{'cluster': 1}"}, "error", "no JSON"),
        ({"TF_CONFIG": "[1]"}, "error", "two dictionaries"),
        ({"TF_CONFIG": config(kind="chief")}, "error", "'chief' is not in the cluster: worker"),
        ({"TF_CONFIG": config(index=2)}, "error", "index 2 is not one of the 2 members"),
        ({"TF_CONFIG": config()}, "warning", "several processes"),
        ({"TF_CONFIG": config(workers=["a:1"])}, "ok", "one process"),
        ({"KERAS_BACKEND": "jax"}, "error", "TensorFlow backend"),
        ({"TF_USE_LEGACY_KERAS": "1"}, "error", "needs Keras 3"),
        ({"CUDA_VISIBLE_DEVICES": "1, 2"}, "warning", "blank"),
    ],
)
def test_variables(variables, severity, part):
    (finding,) = environment.variable_findings(variables)
    assert finding.severity == severity and part in finding.reason
    assert finding.fix or severity == "ok"


def test_nothing_set_is_right():
    assert environment.variable_findings({}) == []


GPUS = {"installed": ["GPU 0", "GPU 1"], "visible": ["GPU 1"], "gpus": ["GPU:0"], "memory_growth": [True]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {"GPUs": "ok"}),
        (GPUS, {"GPUs": "ok"}),
        (GPUS | {"gpus": [], "memory_growth": []}, {"GPUs": "warning"}),
        (GPUS | {"gpus": [], "memory_growth": [], "visible": []}, {"GPUs": "note"}),
        (GPUS | {"memory_growth": [False]}, {"GPUs": "ok", "memory growth": "warning"}),
        (GPUS | {"free": [{"name": "GPU 1", "free": 300}]}, {"GPUs": "ok", "GPU memory": "warning"}),
        ({"problem": "It hangs.\nWhat to do: f()", "problem_subject": "devices"}, {"GPUs": "ok", "devices": "error"}),
    ],
)
def test_devices(change, expected):
    findings, facts = findings_of(ANSWER | change)
    assert severities(findings) == expected
    assert facts["inter-op threads"] == 8


def test_physical_and_logical_names_stand_side_by_side():
    findings, _ = findings_of(ANSWER | GPUS)
    assert findings[0].reason == "GPU 1 is GPU:0"


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("import time; time.sleep(60)", "had not ended after 2 seconds"),
        ("import os; os.abort()", "ended with code -6"),
        ("raise SystemExit('no driver')", "no driver"),
    ],
)
def test_a_process_that_hangs_or_dies_is_a_finding(code, part):
    (finding,), facts = probe(replicas=2, timeout=2, command=(sys.executable, "-c", code))
    assert finding.severity == "error" and part in finding.reason
    assert facts == {}


def test_the_answer_is_found_among_other_lines():
    code = f"print('hello'); print({MARK + json.dumps(ANSWER | {'replicas': 2})!r}); print('bye')"
    findings, facts = probe(replicas=2, timeout=20, command=(sys.executable, "-c", code))
    assert severities(findings) == {"GPUs": "ok"} and facts["replicas tried"] == 2


def test_text_and_json_of_a_report():
    findings = (
        Finding("note", "b", "Slow."),
        Finding("error", "a", "Wrong.", "x = 1\ny = 2"),
        Finding("ok", "c", "fine"),
    )
    report = Report({"Python": "3", "GPUs": []}, findings)
    assert str(report) == (
        "Python  3\nGPUs    none\n\n1 error, 0 warnings, 1 note, 1 ok\n\n"
        "[error] a\n    Wrong.\n    What to do: x = 1\n    y = 2\n\n[note] b\n    Slow.\n\n[ok] c: fine"
    )
    data = json.loads(report.to_json())
    assert data["passed"] is report.passed is False
    assert data["findings"][0] == {"severity": "note", "subject": "b", "reason": "Slow.", "fix": ""}


def test_long_lists_are_cut():
    assert joined("abc", most=2) == "a, b and 1 more"
