"""The pages become HTML without a warning."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

import mirrored_keras

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ("sphinx", "myst_parser")


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in TOOLS), reason='Sphinx is missing: pip install ".[docs]"'
)
def test_pages_are_built_without_warnings(tmp_path):
    package = pathlib.Path(mirrored_keras.__file__).resolve().parents[1]
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(ROOT / "docs"), str(tmp_path)]
    result = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert (tmp_path / "zh" / "tutorial.html").exists()
