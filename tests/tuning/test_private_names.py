"""Private names of KerasTuner: only in one module, and each of them exists."""

import importlib

import keras_tuner
import pytest

from contract.source import imports, modules, private_attributes
from mirrored_keras.tuning import private

MODULE = "mirrored_keras.tuning.private"
METHODS = sorted((owner, name) for owner, names in private.PRIVATE_NAMES.items() for name in names or ("",))


@pytest.fixture(scope="module")
def owners(tmp_path_factory):
    """One object of each class in whose state KerasTuner keeps private attributes."""
    oracle = keras_tuner.oracles.RandomSearchOracle("loss")
    folder = tmp_path_factory.mktemp("tuner")
    return {
        "Oracle": oracle,
        "BayesianOptimizationOracle": keras_tuner.oracles.BayesianOptimizationOracle("loss"),
        "GridSearchOracle": keras_tuner.oracles.GridSearchOracle("loss"),
        "HyperbandOracle": keras_tuner.oracles.HyperbandOracle("loss"),
        "Tuner": keras_tuner.Tuner(oracle, lambda hp: None, directory=folder),
    }


@pytest.mark.parametrize(("owner", "name"), METHODS)
def test_private_name_exists(owner, name):
    module, _, attribute = owner.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    assert not name or hasattr(found, name)


@pytest.mark.parametrize("owner", sorted(private.PRIVATE_ATTRIBUTES))
def test_private_attribute_exists(owner, owners):
    assert all(hasattr(owners[owner], name) for name in private.PRIVATE_ATTRIBUTES[owner])


def test_private_names_are_used_in_one_place(owners):
    names = {name for owner in owners.values() for name in (*dir(owner), *vars(owner))}
    names = {name for name in names if name.startswith("_") and not name.startswith("__")}
    assert "_retry_queue" in names
    for name, tree in modules().items():
        if name != MODULE and name.startswith("mirrored_keras.tuning"):
            assert not [target for target in imports(name) if target.startswith("keras_tuner.src")], name
            used = [(attribute, line) for attribute, line, _ in private_attributes(tree) if attribute in names]
            assert not used, f"{name}: move to {MODULE}"
