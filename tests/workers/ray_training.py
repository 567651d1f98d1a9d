"""Run by `test_ray.py`: two workers of a local Ray, one of which is killed in the middle of an epoch.

python ray_training.py FOLDER
"""

import json
import os
import pathlib
import signal
import sys
import time


def train(config):
    import keras

    from mirrored_keras.ray import ray_callbacks
    from mirrored_keras.replica import workers
    from mirrored_keras.workers import multi_worker_strategy
    from workers.training import arrays, build

    strategy = multi_worker_strategy()
    folder = pathlib.Path(config["folder"])

    class Killed(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.epoch = 0

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            marker = folder / "killed"
            if (self.epoch, batch) == (1, 3) and workers.index_of(strategy) == 1 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        def get_state(self):
            return None

        def set_state(self, state):
            pass

    model = build(strategy)
    x, y, w = arrays(46)
    fit = {"sample_weight": w, "batch_size": 8, "epochs": 3, "verbose": 0}
    model.fit(x, y, **fit, callbacks=[Killed(), *ray_callbacks(every_steps=2)])
    if workers.is_chief(strategy):
        (folder / "weights.json").write_text(json.dumps([weight.tolist() for weight in model.get_weights()]))


def main():
    import numpy as np
    import ray

    from mirrored_keras.ray import ray_trainer

    folder = pathlib.Path(sys.argv[1])
    start = time.monotonic()
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=True, _node_ip_address="127.0.0.1")
    trainer = ray_trainer(
        train, storage_path=folder, name="run", workers=2, config={"folder": str(folder)}, max_failures=2
    )
    result = trainer.fit()
    assert (folder / "killed").exists()
    assert result.metrics["epoch"] == 2, result.metrics
    checkpoints = sorted(path.parent.name for path in (folder / "run").rglob("model.keras"))
    print(json.dumps({"seconds": time.monotonic() - start, "loss": result.metrics["loss"], "checkpoints": checkpoints}))

    from mirrored_keras import Resume, load_model
    from mirrored_keras.checkpoint import random_states
    from mirrored_keras.checkpoint.state_files import StateFiles
    from workers.training import arrays, build

    # undisturbed, on one replica, in the order that the states name
    seed = StateFiles(folder / "run" / "resume", keep=2).newest().header["seed"]
    random_states.new_seed = lambda: seed
    alone = build(None)
    x, y, w = arrays(46)
    start = alone.get_weights()
    alone.fit(x, y, sample_weight=w, batch_size=8, epochs=3, verbose=0, callbacks=[Resume(folder / "alone")])
    received = [np.asarray(weight) for weight in json.loads((folder / "weights.json").read_text())]

    from invariance.compare import weights_error

    error = weights_error(alone.get_weights(), received, start)
    with result.checkpoint.as_directory() as checkpoint:
        loaded = load_model(pathlib.Path(checkpoint) / "model.keras")
        difference = max(float(np.abs(a - b).max()) for a, b in zip(loaded.get_weights(), received, strict=True))
    print(json.dumps({"error": error, "difference": difference, "checkpoints": len(checkpoints)}))
    assert error <= 2e-5 and difference == 0 and len(checkpoints) == 2


if __name__ == "__main__":
    main()
