"""Private names of Keras and TensorFlow: only in one module, and each of them exists."""

import importlib

import keras
import pytest
import tensorflow as tf

from contract.source import assigned_names, imports, modules, private_attributes
from mirrored_keras.replica import private

PRIVATE_MODULE = "mirrored_keras.replica.private"
#: Private names of KerasTuner, which `tests/tuning/test_private_names.py` looks up.
OTHER_PRIVATE_MODULES = ("mirrored_keras.tuning.private",)
PRIVATE_IMPORTS = ("keras.src", "tensorflow.python", "tensorflow.core")
METHODS = sorted((owner, name) for owner, names in private.PRIVATE_NAMES.items() for name in names)


def compiled_model():
    """A model that has been trained: it has every attribute it ever gets."""
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(tf.ones((2, 2)), tf.ones((2, 1)), verbose=0)
    return model


def averaging_optimizer(model):
    optimizer = keras.optimizers.SGD(use_ema=True)
    optimizer.build(model.trainable_variables)
    return optimizer


def accumulating_optimizer(model):
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2)
    optimizer.build(model.trainable_variables)
    return optimizer


def batch_normalization():
    layer = keras.layers.BatchNormalization()
    layer.build((None, 2))
    return layer


def model_iterator(model):
    """The iterator that `fit` makes, caught on its way to the build."""
    caught = []
    model._maybe_symbolic_build = lambda iterator=None, data_batch=None: caught.append(iterator)
    model.evaluate(tf.ones((2, 2)), tf.ones((2, 1)), verbose=0)
    return caught[0]


@pytest.fixture(scope="module")
def owners():
    """One live object of each kind in whose state Keras keeps private attributes."""
    model = compiled_model()
    iterator = model_iterator(model)
    return {
        "model": model,
        "compile_loss": model._compile_loss,
        "optimizer": model.optimizer,
        "metric": model._loss_tracker,
        "averaging_optimizer": averaging_optimizer(model),
        "accumulating_optimizer": accumulating_optimizer(model),
        "compile_metrics": model._compile_metrics,
        "function_metric": model._compile_metrics.metrics[0],
        "function_loss": keras.losses.CosineSimilarity(axis=0),
        "functional": model,
        "sequential": keras.Sequential([keras.Input((2,))]),
        "epoch_iterator": iterator,
        "array_adapter": iterator.data_adapter,
        "batch_normalization": batch_normalization(),
        "variable": model.trainable_variables[0],
    }


def keras_names(owners):
    """Every private attribute that Keras gives the objects we inherit from."""
    names = {name for owner in owners.values() for name in (*dir(owner), *vars(owner))}
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def listed_names():
    names = [*private.PRIVATE_NAMES.values(), *private.PRIVATE_ATTRIBUTES.values()]
    return {name for group in names for name in group}


def test_private_modules_are_imported_in_one_place():
    for name in modules():
        if name != PRIVATE_MODULE:
            private_ones = [t for t in imports(name) if t.startswith(PRIVATE_IMPORTS)]
            assert not private_ones, f"{name}: move to {PRIVATE_MODULE}"


def test_private_attributes_of_others_are_read_in_one_place():
    for name, tree in modules().items():
        if name in (PRIVATE_MODULE, *OTHER_PRIVATE_MODULES):
            continue
        ours = assigned_names(tree)
        for attribute, line, is_own in private_attributes(tree):
            assert is_own or attribute in ours, f"{name}:{line}: `{attribute}` of another object"


def test_inherited_private_names_are_listed(owners):
    """Reading, setting or overriding a private name of Keras on `self` relies on it as much."""
    inherited = keras_names(owners) - listed_names()
    for name, tree in modules().items():
        if name != PRIVATE_MODULE:
            for attribute, line, _ in private_attributes(tree):
                assert attribute not in inherited, f"{name}:{line}: list `{attribute}`"


@pytest.mark.parametrize(("owner", "name"), METHODS)
def test_private_method_exists(owner, name):
    module, _, attribute = owner.partition(":")
    assert hasattr(getattr(importlib.import_module(module), attribute), name)


@pytest.mark.parametrize("owner", sorted(private.PRIVATE_ATTRIBUTES))
def test_private_attribute_exists(owner, owners):
    missing = [n for n in private.PRIVATE_ATTRIBUTES[owner] if not hasattr(owners[owner], n)]
    assert not missing
