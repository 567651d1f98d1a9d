"""Is every weight of a model where Keras will look for it in a file? If not, no value is restored."""

import h5py
import keras
import numpy as np
import pytest

from mirrored_keras import CheckpointError, load_weights, save_weights
from mirrored_keras.checkpoint.file_layout import has_layout_of
from mirrored_keras.checkpoint.inspection import check_file


def make_model(*, units=3, compiled=True):
    inputs = keras.Input((4,))
    x = keras.layers.BatchNormalization()(keras.layers.Dense(units)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dropout(0.5)(x)))
    if compiled:
        model.compile("adam", "mse", metrics=["mae"])
        model.fit(np.ones((4, 4)), np.ones((4, 1)), verbose=0)
    return model


def has_layout(model, path):
    shapes = {}
    check_file(path, verify=False, shapes=shapes)
    return has_layout_of(model, shapes)


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "model.weights.h5")
    save_weights(make_model(), path)
    return path


def test_layout_of_the_same_model(path):
    assert has_layout(make_model(), path)
    assert has_layout(make_model(compiled=False), path)


def test_layout_of_another_shape(path):
    assert not has_layout(make_model(units=5), path)


@pytest.mark.parametrize("change", ["missing", "renamed", "more"])
def test_layout_of_another_file(path, change):
    with h5py.File(path, "a") as file:
        group = file["layers/dense/vars"]
        if change == "missing":
            del group["1"]
        elif change == "renamed":
            file.move("layers/dense", "layers/dens")
        else:
            group["2"] = np.zeros(3)
    assert not has_layout(make_model(), path)


class Unsaved(keras.layers.Layer):
    """Keeps its weight out of files."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(1,), initializer="ones")

    def call(self, inputs):
        return inputs * self.scale

    def save_own_variables(self, store):
        pass


def test_weights_that_are_in_no_file(tmp_path):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, Unsaved()(keras.layers.Dense(2)(inputs)))
    path = str(tmp_path / "unsaved.weights.h5")
    save_weights(model, path)
    assert not has_layout(model, path)
    model.set_weights([np.full(weight.shape, 7.0) for weight in model.get_weights()])
    with pytest.raises(CheckpointError, match="expected 1 variables, but received 0"):
        load_weights(model, path)
    assert all((weight == 7.0).all() for weight in model.get_weights()), "a value was restored"
