"""TensorFlow's default collectives: they allow one group of devices per process, so one process per R."""

import os
import pathlib
import subprocess
import sys

import pytest

import mirrored_keras

TESTS = pathlib.Path(__file__).resolve().parents[1]
SCRIPT = TESTS / "subprocess" / "default_collectives.py"


def run_python(*arguments, timeout=300):
    """Runs Python with the helpers of `tests/` and the package that is under test here."""
    package = pathlib.Path(mirrored_keras.__file__).resolve().parents[1]
    path = os.pathsep.join([str(TESTS), str(package), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.parametrize("replicas", [2, 3])
def test_default_collectives(replicas):
    result = run_python(SCRIPT, replicas)
    assert result.returncode == 0, result.stdout + result.stderr[-3000:]
    assert result.stdout.count("same:") == 8
