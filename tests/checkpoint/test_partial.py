"""Fine-tuning: start from another model's file or from a `tf.train.Checkpoint`, and say what matched."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from checkpoint.saved_models import five_steps, make_model, same_state, scope_of, state_of
from mirrored_keras import CheckpointError, DistributedModel, load_weights, save_model, save_weights


def fine_tuned(replicas=2):
    with scope_of(replicas):
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(6, activation="tanh", name="hidden")(inputs)
        model = DistributedModel(inputs, keras.layers.Dense(5, name="classes")(hidden))
        model.compile("adam", "mse")
    return model


def trained():
    with scope_of(3):
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(6, activation="tanh", name="hidden")(inputs)
        model = DistributedModel(inputs, keras.layers.Dense(2, name="head")(hidden))
        model.compile("adam", "mse")
    five_steps(model)
    return model


@pytest.mark.parametrize("name", ["model.weights.h5", "model.h5", "model.keras"])
def test_other_head(tmp_path, name):
    model = trained()
    (save_weights if "weights" in name else save_model)(model, tmp_path / name)
    new = fine_tuned()
    head = new.get_layer("classes").get_weights()
    report = load_weights(new, tmp_path / name, partial=True)
    np.testing.assert_array_equal(new.get_layer("hidden").kernel.numpy(), model.get_layer("hidden").kernel.numpy())
    assert same_state(new.get_layer("classes").get_weights(), head)
    assert {"hidden/kernel", "hidden/bias"} <= set(report.restored)
    assert {"classes/kernel", "classes/bias"} <= set(report.kept)
    assert "kept: classes/kernel" in str(report)


@pytest.mark.parametrize("keyword", ["model", "net", None])
def test_checkpoint_of_another_run(tmp_path, keyword):
    model = make_model(3)
    five_steps(model)
    parts = {keyword: model, "optimizer": model.optimizer} if keyword else {"root": model}
    prefix = tf.train.Checkpoint(**parts).write(str(tmp_path / "checkpoint"))
    other = make_model(2)
    report = load_weights(other, prefix)
    assert not report.kept
    assert same_state(state_of(other), state_of(model))


def plain(base):
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(3, name="hidden")(inputs)
    return base(inputs, {"a": keras.layers.Dense(2, name="a")(hidden), "b": keras.layers.Dense(1, name="b")(hidden)})


def test_checkpoint_whose_variables_have_the_names_of_an_optimizer(tmp_path):
    """An optimizer that was built by hand knows the weights too, and a checkpoint has one name for each."""
    model, adam = plain(keras.Model), keras.optimizers.Adam()
    adam.build(model.trainable_variables)
    prefix = tf.train.Checkpoint(model=model, optimizer=adam).write(str(tmp_path / "checkpoint"))
    assert not any(name.startswith("model/") for name, _ in tf.train.list_variables(prefix))
    with scope_of(2):
        other = plain(DistributedModel)
    assert not load_weights(other, prefix).kept
    for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_checkpoint_that_does_not_fit(tmp_path):
    prefix = tf.train.Checkpoint(model=trained()).write(str(tmp_path / "checkpoint"))
    new = fine_tuned()
    before = state_of(new)
    with pytest.raises(CheckpointError):
        load_weights(new, prefix)
    assert same_state(state_of(new), before)
