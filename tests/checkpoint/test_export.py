"""A SavedModel from a mirrored model knows nothing of replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from checkpoint.saved_models import X, five_steps, make_model, scope_of
from mirrored_keras import CheckpointError, DistributedModel, export_model


class Subclassed(DistributedModel):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = keras.layers.Dense(3), keras.layers.Dense(2)

    def call(self, x):
        return self.head(self.hidden(x))


def subclassed():
    with scope_of(2):
        model = Subclassed()
        model.compile("adam", "mse")
    return model


@pytest.mark.parametrize("make", [lambda: make_model(2), subclassed, lambda: make_model(None)])
def test_one_copy_of_every_weight_for_any_number_of_rows(tmp_path, make):
    model = make()
    five_steps(model)
    export_model(model, tmp_path / "served" / "1")
    loaded = tf.saved_model.load(str(tmp_path / "served" / "1"))
    numbers = sum(tf.size(v).numpy() for v in loaded.variables if v.dtype.is_floating)
    assert numbers == sum(tf.size(v).numpy() for v in model.weights)
    for rows in (1, 18):
        np.testing.assert_allclose(
            loaded.serve(X[:rows]).numpy(), model.predict(X[:rows], verbose=0), rtol=1e-5, atol=1e-6
        )
    assert "serving_default" in loaded.signatures
    graph = (tmp_path / "served" / "1" / "saved_model.pb").read_bytes()
    assert b"CPU:1" not in graph
    assert [entry.name for entry in (tmp_path / "served").iterdir()] == ["1"]


def test_what_is_there_is_left_alone(tmp_path):
    model = make_model(2)
    export_model(model, tmp_path / "1")
    with pytest.raises(CheckpointError, match="An export is a new folder") as caught:
        export_model(model, tmp_path / "1")
    assert f"{tmp_path.name}/2" in str(caught.value)
