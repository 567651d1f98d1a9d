"""Functional, subclassed, nested and converted models, and how they come back from a file."""

import copy
import pickle

import keras
import numpy as np
import pytest

from mirrored_keras import DistributedModel
from model.regression import X, Y, assert_trains_as_one, made_under, perceptron


class OwnCall(DistributedModel):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)


class OwnName(DistributedModel):
    pass


class OwnInit(DistributedModel):
    def __init__(self, units, **kwargs):
        inputs = keras.Input((5,))
        super().__init__(inputs, keras.layers.Dense(units)(inputs), **kwargs)


def compiled(model):
    model.compile(keras.optimizers.SGD(0.05), loss="mse")
    return model


def sequential(*, built):
    layers = [keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((5,)), *layers] if built else layers)


MODELS = {
    "own call": OwnCall,
    "own init": lambda: OwnInit(1),
    "sequential": lambda: DistributedModel.from_model(sequential(built=True)),
    "sequential, not built": lambda: DistributedModel.from_model(sequential(built=False)),
    "subclass, not built": lambda: DistributedModel.from_model(Plain()),
    "nested": lambda: DistributedModel.from_model(
        keras.Sequential([keras.Input((5,)), perceptron(DistributedModel), keras.layers.Dense(1)])
    ),
    "own class from a model": lambda: OwnName.from_model(sequential(built=False)),
}


class Plain(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs, training=False):
        return self.dense(inputs)


@pytest.mark.parametrize("name", MODELS)
def test_every_style_trains_as_one(name):
    perceptron(DistributedModel)  # a functional use first: it must not change the class
    assert_trains_as_one(lambda: compiled(MODELS[name]()))


def test_functional_use_leaves_the_classes_alone():
    bases = DistributedModel.__bases__, OwnInit.__bases__
    OwnInit(2)
    perceptron(DistributedModel)
    assert (DistributedModel.__bases__, OwnInit.__bases__) == bases
    assert isinstance(OwnInit(1), OwnInit) and isinstance(perceptron(DistributedModel), DistributedModel)


def test_from_model_keeps_layers_and_weights():
    plain = keras.applications.MobileNetV2(input_shape=(32, 32, 3), alpha=0.35, weights=None, classes=2)
    model = DistributedModel.from_model(plain)
    assert [id(layer) for layer in model.layers] == [id(layer) for layer in plain.layers]
    assert all(a is b for a, b in zip(model.weights, plain.weights, strict=True))
    assert DistributedModel.from_model(model) is model


def test_from_model_keeps_the_structure_of_inputs_and_outputs():
    inputs = {"a": keras.Input((2,), name="a"), "b": keras.Input((3,), name="b")}
    merged = keras.layers.Concatenate()([inputs["a"], inputs["b"]])
    model = DistributedModel.from_model(keras.Model(inputs, {"out": keras.layers.Dense(1)(merged)}))
    assert set(model.predict({"a": X[:, :2], "b": X[:, 2:]}, verbose=0)) == {"out"}


@pytest.mark.parametrize("replicas", [None, 2])
def test_keras_file(tmp_path, replicas):
    model = made_under(replicas, lambda: perceptron(DistributedModel, optimizer="adam", metrics=["mae"]))
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded, DistributedModel) and loaded.compiled
    for a, b in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    np.testing.assert_allclose(model.predict(X, verbose=0), loaded.predict(X, verbose=0), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_h5_file(tmp_path):
    model = perceptron(DistributedModel)
    model.save(tmp_path / "model.h5")
    loaded = keras.models.load_model(tmp_path / "model.h5", compile=False)
    assert isinstance(loaded, DistributedModel)
    np.testing.assert_array_equal(model.predict(X, verbose=0), loaded.predict(X, verbose=0))


def test_copies():
    model = perceptron(DistributedModel)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert isinstance(twin, DistributedModel)
        np.testing.assert_array_equal(model.predict(X, verbose=0), twin.predict(X, verbose=0))
    assert isinstance(keras.models.clone_model(model), DistributedModel)


def test_without_a_strategy_it_is_keras_to_the_bit():
    ours, stock = (made_under(None, lambda b=base: perceptron(b)) for base in (DistributedModel, keras.Model))
    histories = [m.fit(X, Y, batch_size=7, epochs=2, verbose=0, shuffle=False).history for m in (ours, stock)]
    assert histories[0] == histories[1]
    for a, b in zip(ours.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
