"""What comes back from a file beside the numbers: arguments, names, classes; and what plain Keras wrote."""

import zipfile

import keras
import numpy as np
import pytest

from checkpoint.saved_models import X, Y, five_steps, make_model, same_state, scope_of, state_of
from devices import strategy_for
from mirrored_keras import DistributedModel, GlobalBatchLoss, load_model, load_weights, save_model, save_weights
from mirrored_keras.checkpoint import contents

pytestmark = pytest.mark.table(every=3)

WHOLE = ("model.keras", "model.h5")
layers = keras.layers


@keras.saving.register_keras_serializable("checkpoint_tests")
class Weighted(keras.losses.Loss):
    def __init__(self, factor=1.0, name="weighted", **options):
        super().__init__(name=name, **options)
        self.factor = factor

    def call(self, y_true, y_pred):
        return self.factor * keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)

    def get_config(self):
        return {"factor": self.factor, "name": self.name}


@keras.saving.register_keras_serializable("checkpoint_tests")
class Subclassed(DistributedModel):
    def __init__(self, units=3, **options):
        super().__init__(**options)
        self.units = units
        self.hidden, self.head = layers.Dense(units), layers.Dense(2)

    def call(self, x):
        return self.head(self.hidden(x))


class OwnStep(DistributedModel):
    def train_step(self, data):
        return super().train_step(data)


def unregistered(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)


def evaluated(model, y):
    return model.evaluate(X, y, batch_size=5, verbose=0, return_dict=True)


def functional(*path, replicas=2, **options):
    with scope_of(replicas):
        inputs = keras.Input((4,))
        x = inputs
        for layer in path:
            x = layer(x)
        model = DistributedModel(inputs, x)
        model.compile("adam", "mse", **options)
    model.fit(X, Y, verbose=0)
    return model


@pytest.mark.parametrize("name", WHOLE)
def test_several_outputs_with_every_kind_of_loss_and_metric(tmp_path, name):
    with scope_of(2):
        inputs = keras.Input((4,))
        outputs = {key: layers.Dense(2, name=key)(inputs) for key in "abc"}
        model = DistributedModel(inputs, outputs)
        model.compile(
            keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.02, 30), clipnorm=1.0, use_ema=True),
            loss={"a": "mae", "b": keras.losses.Huber(delta=0.1), "c": Weighted(2.5)},
            loss_weights={"a": 0.3, "b": 2.0, "c": 1.0},
            metrics={"a": ["mse", "accuracy"], "b": [keras.metrics.CosineSimilarity(axis=1, name="cosine")]},
            weighted_metrics={"c": ["mae"]},
            steps_per_execution=2,
        )
    y = dict.fromkeys("abc", Y)
    model.fit(X, y, batch_size=4, verbose=0)
    save_model(model, tmp_path / name)
    restored = load_model(tmp_path / name, strategy_for(3))
    assert restored.get_compile_config() == model.get_compile_config()
    assert same_state(state_of(restored), state_of(model))
    expected = evaluated(model, y)
    found = evaluated(restored, y)
    assert list(found) == list(expected)
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-5)


@pytest.mark.parametrize("name", WHOLE)
def test_options_of_this_package(tmp_path, name):
    model = functional(
        layers.Dense(2), micro_batches=2, steps_per_execution="auto", auto_scale_loss=False, jit_compile=False
    )
    save_model(model, tmp_path / name)
    restored = load_model(tmp_path / name)
    assert restored.micro_batches == 2
    assert restored.chooses_steps_per_execution
    assert restored.get_compile_config()["auto_scale_loss"] is False
    assert restored.jit_compile is False
    assert load_model(tmp_path / name, compile=False).compiled is False


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("kind", ["nested", "shared", "own step", "never fitted", "not compiled"])
def test_kinds_of_functional_models(tmp_path, name, kind):
    shared = layers.Dense(4)
    with scope_of(2):
        inner = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Dropout(0.2)])
        head = layers.Dense(2)
        path = {"nested": [inner, head], "shared": [shared, shared, head]}.get(kind, [layers.Dense(3), head])
        inputs = keras.Input((4,))
        x = inputs
        for layer in path:
            x = layer(x)
        model = (OwnStep if kind == "own step" else DistributedModel)(inputs, x)
        if kind != "not compiled":
            model.compile("adam", "mse")
    if kind not in ("never fitted", "not compiled"):
        model.fit(X, Y, verbose=0)
    save_model(model, tmp_path / name)
    restored = load_model(tmp_path / name, strategy_for(2), custom_objects={"OwnStep": OwnStep})
    assert restored.__class__.__name__ == model.__class__.__name__
    assert restored.compiled == model.compiled
    assert len(restored.weights) == len(model.weights)
    np.testing.assert_array_equal(restored.predict(X, verbose=0), model.predict(X, verbose=0))
    if restored.compiled:
        assert same_state(state_of(restored), state_of(model))
        restored.fit(X, Y, verbose=0)


@pytest.mark.parametrize("name", WHOLE)
def test_operations_without_a_layer(tmp_path, name):
    model = functional(lambda x: keras.ops.sin(x * 2)[:, :3], layers.Dense(2, name="head"))
    if name.endswith(".h5"):
        with pytest.warns(UserWarning, match="'multiply.*operations without a layer"):
            save_model(model, tmp_path / name)
    else:
        save_model(model, tmp_path / name)
    restored = load_model(tmp_path / name, strategy_for(2))
    np.testing.assert_array_equal(restored.predict(X, verbose=0), model.predict(X, verbose=0))


def test_subclassed_models(tmp_path):
    with scope_of(2):
        model = Subclassed(units=5)
        model.compile("adam", "mse")
    model.fit(X, Y, verbose=0)
    save_model(model, tmp_path / "model.keras")
    restored = load_model(tmp_path / "model.keras", strategy_for(3))
    assert (type(restored), restored.units) == (Subclassed, 5)
    assert same_state(state_of(restored), state_of(model))
    save_weights(model, tmp_path / "model.weights.h5")
    with scope_of(4):
        other = Subclassed(units=5)
        other.compile("adam", "mse")
        other(X[:1])
    assert not load_weights(other, tmp_path / "model.weights.h5").kept
    assert same_state(state_of(other), state_of(model))


@pytest.mark.parametrize("name", WHOLE)
def test_losses_and_layers_that_are_not_registered_are_named_when_loaded(tmp_path, name):
    with scope_of(2):
        inputs = keras.Input((4,))
        model = DistributedModel(inputs, layers.Dense(2)(inputs))
        model.compile("adam", unregistered)
    save_model(model, tmp_path / name)
    restored = load_model(tmp_path / name, custom_objects={"unregistered": unregistered})
    assert restored.loss is unregistered


@pytest.mark.parametrize("name", WHOLE)
def test_wrapped_losses_keep_what_they_were_made_with(tmp_path, name):
    model = make_model(2, loss=GlobalBatchLoss(keras.losses.Huber(delta=0.25)))
    save_model(model, tmp_path / name)
    restored = load_model(tmp_path / name)
    assert evaluated(restored, Y)["loss"] == pytest.approx(evaluated(model, Y)["loss"], rel=1e-6)
    assert evaluated(restored, Y)["loss"] != pytest.approx(
        evaluated(make_model(2, loss=GlobalBatchLoss(keras.losses.Huber(delta=1.0))), Y)["loss"], rel=1e-3
    )


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("kind", ["functional", "sequential"])
def test_files_of_plain_keras_train_on(tmp_path, name, kind):
    keras.utils.set_random_seed(4)
    if kind == "functional":
        inputs = keras.Input((4,))
        model = keras.Model(inputs, layers.Dense(2)(layers.Dense(3, activation="tanh")(inputs)))
    else:
        model = keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="tanh"), layers.Dense(2)])
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae", keras.metrics.MeanSquaredError(name="own")])
    five_steps(model)
    keras.saving.save_model(model, tmp_path / name)
    # what Keras' own HDF5 writer does to the model that it saves
    model.compile(model.optimizer, "mse", metrics=["mae", keras.metrics.MeanSquaredError(name="own")])
    restored = load_model(tmp_path / name, strategy_for(3))
    assert isinstance(restored, DistributedModel)
    assert same_state(state_of(restored), state_of(model))
    assert sorted(five_steps(restored).history) == ["loss", "mae", "own"]
    five_steps(model)
    difference = max(np.max(np.abs(a - b)) for a, b in zip(model.get_weights(), restored.get_weights(), strict=True))
    assert difference < 1e-6  # of weights that moved by 0.05: measured 6e-8


def test_callbacks_of_keras_write_these_files(tmp_path):
    model = make_model(2)
    callbacks = [
        keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.keras")),
        keras.callbacks.ModelCheckpoint(str(tmp_path / "best.weights.h5"), save_weights_only=True),
    ]
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
    assert load_model(tmp_path / "1.keras").optimizer.iterations == 5
    other = make_model(3)
    other.load_weights(tmp_path / "best.weights.h5")
    assert same_state(state_of(other), state_of(model))


def dense(replicas=2, optimizer="adam", layer=None):
    with scope_of(replicas):
        inputs = keras.Input((4,))
        hidden = layers.Dense(3, name="hidden")(inputs)
        model = DistributedModel(inputs, layers.Dense(2, name="head")(hidden if layer is None else layer(hidden)))
        model.compile(optimizer() if callable(optimizer) else optimizer, "mse")
    return model


def assert_goes_on(model, path, **options):
    """Saves, loads on another number of replicas, and trains both on."""
    save_model(model, path)
    restored = load_model(path, strategy_for(3), **options)
    assert same_state(state_of(restored), state_of(model))
    five_steps(model)
    five_steps(restored)
    for one, other in zip(model.get_weights(), restored.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    return restored


@pytest.mark.parametrize("name", WHOLE)
def test_layers_frozen_after_the_optimizer_was_built(tmp_path, name):
    model = dense()
    five_steps(model)
    model.get_layer("hidden").trainable = False
    frozen = model.get_layer("hidden").get_weights()
    with pytest.warns(UserWarning, match="'hidden' were frozen"):
        save_model(model, tmp_path / name)
    restored = load_model(tmp_path / name, strategy_for(3))
    assert same_state(state_of(restored), state_of(model))
    five_steps(restored)
    assert same_state(restored.get_layer("hidden").get_weights(), frozen)
    assert not same_state(restored.get_layer("head").get_weights(), model.get_layer("head").get_weights())


@pytest.mark.parametrize("name", WHOLE)
def test_weights_that_do_not_decay(tmp_path, name):
    def optimizer():
        made = keras.optimizers.AdamW(0.05, weight_decay=0.5)
        made.exclude_from_weight_decay(var_names=["bias"])
        return made

    model = dense(optimizer=optimizer)
    five_steps(model)
    assert_goes_on(model, tmp_path / name)


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("policies", [("mixed_float16", "float32"), ("float32", "mixed_float16")])
def test_loaded_under_another_dtype_policy(tmp_path, name, policies):
    try:
        keras.config.set_dtype_policy(policies[0])
        model = dense()
        five_steps(model)
        keras.config.set_dtype_policy(policies[1])
        save_model(model, tmp_path / name)
        restored = load_model(tmp_path / name, strategy_for(3))
    finally:
        keras.config.set_dtype_policy("float32")
    assert type(restored.optimizer) is type(model.optimizer)
    assert same_state(state_of(restored), state_of(model))
    assert restored.get_layer("head").compute_dtype == model.get_layer("head").compute_dtype


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("optimizer", ["Adafactor", "Ftrl", "Lamb", "Lion", "Nadam", "RMSprop"])
def test_other_optimizers(tmp_path, name, optimizer):
    model = dense(optimizer=lambda: getattr(keras.optimizers, optimizer)(0.01))
    five_steps(model)
    assert_goes_on(model, tmp_path / name)


def test_a_model_of_plain_keras_that_was_saved_to_hdf5_before(tmp_path):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Dense(2)(inputs))
    model.compile("adam", "mse")
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "before.h5")
    save_model(model, tmp_path / "model.keras")
    assert type(load_model(tmp_path / "model.keras").optimizer) is keras.optimizers.Adam


@keras.saving.register_keras_serializable("checkpoint_tests")
class Scratch(layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(shape=(shape[-1],), name="factor")
        self.scratch = self.add_weight(shape=(), name="scratch", trainable=False)

    def call(self, x):
        return x * self.factor

    def save_own_variables(self, store):
        store["factor"] = self.factor.numpy()

    def load_own_variables(self, store):
        self.factor.assign(store["factor"])


def test_a_layer_that_writes_its_own_variables(tmp_path):
    model, other = dense(layer=Scratch()), dense(layer=Scratch())
    save_weights(model, tmp_path / "model.weights.h5")
    load_weights(other, tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(other.predict(X, verbose=0), model.predict(X, verbose=0))


def test_plain_keras_need_not_unpack_the_archive(tmp_path):
    """With more members than its own three, Keras copies the whole archive to the disk when it loads it."""
    model = functional(layers.Dense(3), layers.Dense(2))
    save_model(model, tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        assert sorted(archive.namelist()) == ["config.json", "metadata.json", "model.weights.h5"]


def test_what_is_too_long_for_the_archives_comment(tmp_path, monkeypatch):
    model = functional(layers.Dense(3), layers.Dropout(0.5, seed=4), layers.Dense(2))
    monkeypatch.setattr(contents, "_LONGEST_COMMENT", 10)
    save_model(model, tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        assert "mirrored_keras.json" in archive.namelist()
    again = load_model(tmp_path / "model.keras")
    assert same_state(state_of(again), state_of(model))
    assert again.get_random_state()[:-1] == model.get_random_state()[:-1]


@pytest.mark.parametrize("replicas", (None, 2))
def test_layers_that_compute_from_what_they_read(tmp_path, replicas):
    """Normalization makes the constants of its call from its weights, after these were set."""

    def make(scale):
        with scope_of(replicas):
            normalization = layers.Normalization(name="normalization")
            normalization.adapt(scale * X)
        return functional(normalization, layers.Dense(2), replicas=replicas)

    model, other = make(1.0), make(7.0)
    save_weights(model, tmp_path / "model.weights.h5")
    load_weights(other, tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(other.predict(X, verbose=0), model.predict(X, verbose=0))
