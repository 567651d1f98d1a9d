"""Memory of a search over trials: growth per trial of the process that searches.

python tests/benchmarks/tuning_memory.py TRIALS KIND

KIND is "stock" (KerasTuner), "here" (all trials in this process) or "process_per_trial". Growth is the slope of a line
through the resident memory after each trial, the first five left out.
"""

import pathlib
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import keras
import numpy as np

from mirrored_keras import tuning

trials, kind = int(sys.argv[1]), sys.argv[2]


def build(hp):
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(hp.Int("units", 200, 900)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    return model


def resident():
    """Returns the MB that this process has in memory."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


sizes = []
if kind == "stock":
    import keras_tuner

    Base, options = keras_tuner.RandomSearch, {}
else:
    Base, options = tuning.RandomSearch, {"process_per_trial": kind == "process_per_trial"}


class Measured(Base):
    def on_trial_end(self, trial):
        super().on_trial_end(trial)
        sizes.append(resident())


x = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
folder = pathlib.Path(tempfile.gettempdir()) / f"tuning_memory_{kind}"  # the same in the workers
tuner = Measured(build, "loss", max_trials=trials, seed=1, directory=folder, overwrite=True, **options)
if kind == "process_per_trial":
    ended = tuner.oracle.end_trial

    def end_trial(trial):
        ended(trial)
        sizes.append(resident())

    tuner.oracle.end_trial = end_trial
tuner.search(x, x[:, :1], batch_size=16, verbose=0)
slope = np.polyfit(range(5, len(sizes)), sizes[5:], 1)[0]
print(f"{kind}: {len(sizes)} trials, {sizes[5]:.0f} to {sizes[-1]:.0f} MB, {slope:.2f} MB per trial")
shutil.rmtree(folder, ignore_errors=True)
