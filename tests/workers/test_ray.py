"""Ray Train on this machine: two workers, one of which is killed."""

import importlib.util
import subprocess
import sys

import pytest

from workers.group import WORKERS, environment


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason='Ray is not installed: pip install ".[ray]"')
def test_killed_worker_of_ray(tmp_path):
    result = subprocess.run(
        [sys.executable, str(WORKERS / "ray_training.py"), str(tmp_path)],
        env=environment(RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S="300", RAY_worker_niceness="0"),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-5000:]
    assert '"difference": 0.0' in result.stdout


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray(tmp_path):
    from mirrored_keras.errors import SetupError
    from mirrored_keras.ray import ray_trainer

    with pytest.raises(SetupError, match="needs Ray Train"):
        ray_trainer(print, storage_path=tmp_path, name="run")


def test_callbacks_without_a_trainer():
    from mirrored_keras.errors import SetupError
    from mirrored_keras.ray import ray_callbacks

    with pytest.raises(SetupError, match="for a function that `ray_trainer` runs"):
        ray_callbacks()
