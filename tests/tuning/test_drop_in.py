"""The four tuners over `DistributedModel`: a script moves by its import, and scores do not depend on the replicas."""

import subprocess
import sys

import keras
import keras_tuner as stock
import numpy as np
import pytest

import tolerances
from mirrored_keras import DistributedModel, SetupError, tuning
from tuning.searches import build, build_eager, data, search


def scores(tuner):
    return [tuner.oracle.trials[trial_id].score for trial_id in tuner.oracle.start_order]


def test_scores_do_not_depend_on_the_number_of_replicas(make_strategy, tmp_path):
    found = {}
    for replicas in (None, 2, 4):
        tuner = tuning.RandomSearch(
            build,
            "val_loss",
            max_trials=1 if replicas == 4 else 2,  # most of the time is for building the steps
            seed=3,
            directory=tmp_path / str(replicas),
            distribution_strategy=make_strategy(replicas),
        )
        found[replicas] = scores(search(tuner))
    best = tuner.get_best_models()[0]
    assert isinstance(best, DistributedModel) and best.distribute_strategy.num_replicas_in_sync == 4
    _, _, held_out = data()
    assert best.evaluate(*held_out, verbose=0)[0] == pytest.approx(min(found[4]), rel=tolerances.logs(8))
    # with its optimizer: two epochs of four batches
    assert int(best.optimizer.iterations.numpy()) == 8
    for replicas in (2, 4):
        assert found[replicas] == pytest.approx(found[None][: len(found[replicas])], rel=tolerances.logs(8))


def test_stock_scores_depend_on_it(make_strategy, tmp_path):
    """What the test above would see."""
    found = []
    for replicas in (None, 4):

        def seeded(hp):
            keras.utils.set_random_seed(1)
            return build(hp)

        tuner = stock.RandomSearch(
            seeded,
            "val_loss",
            max_trials=1,
            seed=3,
            directory=tmp_path / str(replicas),
            distribution_strategy=make_strategy(replicas),
        )
        found += scores(search(tuner, epochs=1))
    assert abs(found[0] - found[1]) > 100 * tolerances.logs(4) * found[0]


class OwnFit(tuning.HyperModel):
    """`fit` of its own, with a hyperparameter that only it knows."""

    def build(self, hp):
        return build_eager(hp)

    def fit(self, hp, model, x, y, **options):
        options["epochs"] = min(options["epochs"], hp.Int("most_epochs", 1, 2))
        assert isinstance(model, DistributedModel)
        return model.fit(x * 1.0, y, **options)


@pytest.mark.parametrize("name", ["RandomSearch", "BayesianOptimization", "Hyperband", "GridSearch"])
def test_every_tuner_with_a_hypermodel_that_fits_by_itself(name, tmp_path):
    options = {"max_epochs": 2, "factor": 2} if name == "Hyperband" else {"max_trials": 2}
    tuner = getattr(tuning, name)(OwnFit(), objective="val_loss", seed=2, directory=tmp_path, **options)
    assert isinstance(tuner, getattr(stock, name))
    search(tuner)
    assert tuner.outcomes()["completed"] >= 2
    assert "most_epochs" in tuner.get_best_hyperparameters()[0].values
    assert isinstance(tuner.get_best_models()[0], DistributedModel)


class Subclassed(keras.Model):
    """Without a graph, built when it is first called."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)


def own_loss(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)


def test_plain_models_keep_what_they_were_compiled_with(tmp_path):
    def build_subclassed(hp):
        model = Subclassed()
        model.compile(keras.optimizers.SGD(hp.Choice("rate", [0.1, 0.2])), own_loss, metrics=["mse"], run_eagerly=True)
        return model

    tuner = tuning.GridSearch(build_subclassed, "val_mse", directory=tmp_path)
    search(tuner, epochs=1)
    model = tuner.get_best_models()[0]
    assert type(model.optimizer) is keras.optimizers.SGD and model.run_eagerly
    _, _, held_out = data()
    values = model.evaluate(*held_out, return_dict=True, verbose=0)
    assert values["mse"] == pytest.approx(min(scores(tuner)), rel=1e-6)
    assert values["loss"] == pytest.approx(
        np.mean(np.abs(model.predict(held_out[0], verbose=0) - held_out[1])), rel=1e-5
    )


def test_optimizer_and_loss_of_the_tuner(tmp_path):
    def uncompiled(hp):
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(hp.Int("units", 1, 1))])

    options = {"optimizer": keras.optimizers.SGD(0.01), "loss": "mse", "metrics": ["mae"]}
    tuner = tuning.RandomSearch(uncompiled, "val_mae", max_trials=1, directory=tmp_path, **options)
    search(tuner, epochs=1)
    assert type(tuner.get_best_models()[0].optimizer) is keras.optimizers.SGD


class OwnStep(keras.Model):
    def train_step(self, data):
        return {"loss": 0.0}


def test_a_plain_model_with_its_own_step_ends_the_search_at_once(tmp_path):
    def build_own(hp):
        inputs = keras.Input((4,))
        model = OwnStep(inputs, keras.layers.Dense(hp.Int("units", 1, 3))(inputs))
        model.compile("sgd", "mse")
        return model

    tuner = tuning.RandomSearch(build_own, "val_loss", max_trials=2, directory=tmp_path)
    with pytest.raises(SetupError, match="OwnStep"):
        search(tuner)
    assert tuner.outcomes() == {"completed": 0, "stopped": 0, "failed": 1, "infeasible": 0, "running": 0}


def test_an_oracle_of_keras_tuner_is_refused(tmp_path):
    with pytest.raises(SetupError, match="The oracle of a tuner comes from"):
        tuning.Tuner(stock.oracles.RandomSearchOracle("loss"), build, directory=tmp_path)


def test_importing_starts_nothing():
    code = (
        "import sys; from mirrored_keras import tuning; tuning.__all__; "
        "assert not {'tensorflow', 'keras', 'keras_tuner'} & set(sys.modules), 'not lazy'"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_package_that_is_missing_is_named(monkeypatch):
    import importlib.util

    from mirrored_keras.tuning import requirements

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else object())
    with pytest.raises(SetupError, match="not installed: scikit-learn\nWhat to do: pip install scikit-learn"):
        requirements.check()


def test_options(tmp_path):
    for options in ({"diverged": "no"}, {"keep_checkpoints": 0}, {"pruner": 3}, {"workers": [[0], [0]]}):
        with pytest.raises(SetupError, match=next(iter(options))):
            tuning.RandomSearch(build, "loss", directory=tmp_path, **options)
    with pytest.raises(SetupError, match="local file system"):
        tuning.RandomSearch(build, "loss", directory="gs://bucket/search")


def test_options_by_position(tmp_path):
    def oracle():
        return tuning.oracles.RandomSearchOracle("loss", max_trials=1)

    tuner = tuning.Tuner(oracle(), build, None, None, None, None, None, tmp_path, "by_position")
    assert tuner.project_dir == str(tmp_path / "by_position")
    with pytest.raises(SetupError, match="local file system"):
        tuning.Tuner(oracle(), build, None, None, None, None, None, "gs://bucket/search")
