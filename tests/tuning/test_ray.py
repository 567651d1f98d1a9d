"""The function of docs/tuning.md as a trial of Ray Tune, on a local Ray."""

import os
import pathlib
import subprocess
import sys

import pytest

import mirrored_keras

CODE = """
import ray
from ray import tune
import numpy as np

def train(config):
    import keras
    from mirrored_keras import DistributedModel, mirrored_strategy
    from ray import tune

    strategy = mirrored_strategy(2)
    x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    keras.utils.set_random_seed(1)
    with strategy.scope():
        inputs = keras.Input((4,))
        model = DistributedModel(inputs, keras.layers.Dense(1)(inputs))
        model.compile(keras.optimizers.SGD(config["rate"]), "mse")
    history = model.fit(x, x[:, :1], epochs=2, batch_size=16, shuffle=False, verbose=0)
    tune.report({"loss": history.history["loss"][-1]})

ray.init(num_cpus=1, include_dashboard=False, address="local")
rates = {"rate": tune.grid_search([0.1, 1e-6])}
tuner = tune.Tuner(train, param_space=rates, run_config=tune.RunConfig(storage_path=FOLDER))
best = tuner.fit().get_best_result("loss", "min")
print("best", best.config["rate"])
"""


def test_trials_of_ray_tune(tmp_path):
    pytest.importorskip("ray", reason='needs pip install "ray[tune]"')
    package = pathlib.Path(mirrored_keras.__file__).resolve().parents[1]
    path = os.pathsep.join([str(package), *(p for p in sys.path if p)])
    result = subprocess.run(
        [sys.executable, "-c", f"FOLDER = {str(tmp_path)!r}\n{CODE}"],
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout[-1500:] + result.stderr[-1500:]
    assert "best 0.1" in result.stdout
