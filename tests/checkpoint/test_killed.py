"""Twenty SIGKILLs, at any moment, on one to three replicas: the weights are those of training without a break."""

import os
import pathlib
import subprocess
import sys

import numpy as np

import mirrored_keras
import tolerances
from checkpoint.training import largest_error

KILLS = 20


def test_killed_at_any_moment(tmp_path):
    package = pathlib.Path(mirrored_keras.__file__).resolve().parents[1]
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    script = pathlib.Path(__file__).with_name("killed.py")
    result = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(KILLS)],
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    killed = int(result.stdout.split()[1])
    assert killed == KILLS, result.stdout
    parts, whole = np.load(tmp_path / "parts" / "result.npz"), np.load(tmp_path / "whole" / "result.npz")
    names = [name for name in whole.files if name != "loss"]
    assert largest_error([parts[name] for name in names], [whole[name] for name in names]) < tolerances.weights(20)
    assert np.allclose(parts["loss"], whole["loss"], rtol=tolerances.logs(20), atol=0)
