"""What cannot be saved or loaded is said before anything is written or changed."""

import functools
import io
import os
import pathlib
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from checkpoint.saved_models import FORMATS, X, Y, five_steps, make_model, same_state, scope_of, state_of
from devices import strategy_for
from mirrored_keras import (
    CheckpointError,
    DistributedModel,
    SetupError,
    SyncBatchNormalization,
    load_model,
    load_weights,
    save_model,
    save_weights,
)

WHOLE = ("model.keras", "model.h5")
layers = keras.layers


def write(model, path):
    save_weights(model, path) if path.name.endswith(".weights.h5") else save_model(model, path)


def read(path):
    return load_weights(make_model(None), path) if path.name.endswith(".weights.h5") else load_model(path)


@pytest.fixture(params=FORMATS)
def saved(request, tmp_path):
    model = make_model(None)
    five_steps(model)
    path = tmp_path / request.param
    write(model, path)
    return path


class NoConfig(DistributedModel):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, layers.Dense(2)

    def call(self, x):
        return self.head(self.layer(x))


class WrongConfig(DistributedModel):
    def __init__(self, units):
        super().__init__()
        self.head = layers.Dense(units)

    def call(self, x):
        return self.head(x)

    def get_config(self):
        return {"width": 3}


class StockSubclass(keras.Model):
    def __init__(self, units=3, **options):
        super().__init__(**options)
        self.units = units
        self.head = layers.Dense(units)

    def call(self, x):
        return self.head(x)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: NoConfig(lambda x: x + 1), "made again from `get_config`"),
        (lambda: WrongConfig(2), "get_config\\(\\) with \\['width'\\]: missing a required argument: 'units'"),
        (lambda: StockSubclass(units=5), "units=3, model.units=5"),
    ],
)
def test_subclasses_that_could_not_be_made_again(tmp_path, make, said):
    model = make()
    model(X[:1])
    with pytest.raises(CheckpointError, match=said):
        save_model(model, tmp_path / "model.keras")
    with pytest.raises(CheckpointError, match="the code of a class is in no file"):
        save_model(model, tmp_path / "model.h5")
    assert not list(tmp_path.iterdir())
    save_weights(model, tmp_path / "model.weights.h5")


@pytest.mark.parametrize("name", WHOLE)
def test_python_lambdas_are_warned_about_and_need_the_users_word(tmp_path, name):
    inputs = keras.Input((4,))
    model = DistributedModel(inputs, layers.Lambda(lambda x: x * 2, name="doubled")(inputs))
    with pytest.warns(UserWarning, match="'doubled' hold a Python lambda"):
        save_model(model, tmp_path / name)
    with pytest.raises(CheckpointError, match="Code in a file is not run"):
        load_model(tmp_path / name)
    np.testing.assert_allclose(load_model(tmp_path / name, safe_mode=False).predict(X, verbose=0), 2 * X)


def test_process_wide_unsafe_loading_is_refused(tmp_path):
    path = tmp_path / "model.keras"
    save_model(make_model(None), path)
    from keras.src.backend.common import global_state

    keras.config.enable_unsafe_deserialization()
    try:
        with pytest.raises(CheckpointError, match="enable_unsafe_deserialization"):
            load_model(path)
        assert load_model(path, safe_mode=False).built
    finally:
        global_state.set_global_attribute("safe_mode_saving", None)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda model, folder: save_model(model, folder / "model.bin"), "says the format"),
        (lambda model, folder: save_model(model, "gs://bucket/model.keras"), "tf.io.gfile.copy"),
        (lambda model, folder: save_weights(model, folder / "model.h5"), "says the format: .weights.h5"),
        (lambda model, folder: save_model(model, folder / "folder.keras"), "which is a folder"),
        (lambda model, folder: save_model("model", folder / "model.keras"), "is a Keras model"),
        (lambda model, folder: save_model(DistributedModel(), folder / "model.keras"), "once it is built"),
        (lambda model, folder: load_model(folder / "folder.keras"), "A model is one file"),
    ],
)
def test_names_and_models(tmp_path, call, said):
    (tmp_path / "folder.keras").mkdir()
    with pytest.raises(CheckpointError, match=said):
        call(make_model(None), tmp_path)


def test_missing_files_say_what_there_is(tmp_path, saved):
    with pytest.raises(FileNotFoundError, match=f"it holds {saved.name}"):
        load_model(tmp_path / "other.keras")
    with pytest.raises(FileNotFoundError, match="no model file is there"):
        load_weights(make_model(None), tmp_path / "nowhere" / "other.weights.h5")


@pytest.mark.parametrize("function", [save_model, save_weights, load_weights])
def test_not_in_a_replica_nor_in_a_graph(tmp_path, function):
    model = make_model(2)
    path = tmp_path / "model.weights.h5"
    with pytest.raises(CheckpointError, match="inside a replica"):
        strategy_for(2).run(lambda: function(model, path))
    with pytest.raises(CheckpointError, match=r"inside a tf\.function"):
        tf.function(lambda: function(model, path), autograph=False)()


def damage(path, kind):
    data = path.read_bytes()
    middle = len(data) // 2
    changed = {
        "empty": b"",
        "half": data[:middle],
        "16 bytes short": data[:-16],
        "web page": b"<!DOCTYPE html><html>404</html>",
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
        "text": b"hello, this is no model at all",
        "one bit": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "appended": data + b"more",
    }[kind]
    path.write_bytes(changed)
    return len(changed)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("empty", "the file is empty"),
        ("half", "damaged"),
        ("16 bytes short", "damaged"),
        ("web page", "it is a web page"),
        ("pointer", "git lfs pull"),
        ("text", "it begins with b'hello"),
        ("one bit", "damaged"),
        ("appended", "damaged"),
    ],
)
def test_damage_is_named_with_file_and_size(saved, kind, said):
    size = damage(saved, kind)
    with pytest.raises(CheckpointError, match=said) as caught:
        read(saved)
    assert saved.name in str(caught.value)
    assert f"size={size} bytes" in str(caught.value)


def test_a_file_of_another_format(tmp_path):
    save_model(make_model(None), tmp_path / "model.keras")
    os.rename(tmp_path / "model.keras", tmp_path / "model.h5")
    with pytest.raises(CheckpointError, match=r"rename it to end with \.keras"):
        load_model(tmp_path / "model.h5")


def test_an_edited_file_is_refused_unless_asked_for(tmp_path):
    path = tmp_path / "model.h5"
    save_model(make_model(None), path)
    with h5py.File(path, "a") as file:
        file["model_weights/head/head/bias"][:] = 7
        file.create_dataset("note", data=np.arange(1000))
    with pytest.raises(CheckpointError, match="damaged"):
        load_model(path)
    np.testing.assert_array_equal(load_model(path, verify=False).get_layer("head").bias.numpy(), [7, 7])


def linked(path, make_link):
    with h5py.File(path, "w") as file:
        make_link(file)


@pytest.mark.parametrize(
    ("make_link", "said"),
    [
        (lambda file: file.__setitem__("a", h5py.ExternalLink("/etc/passwd", "/")), "is a link to '/etc/passwd'"),
        (lambda file: file.__setitem__("a", h5py.SoftLink("/a")), "is a link"),
        (
            lambda file: file.create_dataset("a", (4,), "f4", external=[("/tmp/elsewhere", 0, 16)]),
            "keeps its numbers in another file",
        ),
        (lambda file: file.create_dataset("g/a", (1 << 40,), "f4", chunks=(1 << 20,)), "grows to"),
    ],
)
@pytest.mark.parametrize("name", ["model.h5", "model.weights.h5", "model.keras"])
def test_files_that_reach_out_of_themselves(tmp_path, name, make_link, said):
    path = tmp_path / name
    if name.endswith(".keras"):
        memory = io.BytesIO()
        linked(memory, make_link)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model.weights.h5", memory.getvalue())
    else:
        linked(path, make_link)
    with pytest.raises(CheckpointError, match=said):
        read(path)


@pytest.mark.parametrize("member", ["../outside", "/outside", "a/../../outside"])
def test_archives_that_lead_outside(tmp_path, member):
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, b"x")
    with pytest.raises(CheckpointError, match="leads out of the archive"):
        load_model(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.keras"]


def test_archives_that_grow(tmp_path):
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("config.json", bytes(1 << 26))
    with pytest.raises(CheckpointError, match="grows to 67108864"):
        load_model(path)


def test_another_architecture_names_layer_and_both_shapes(saved):
    with scope_of(2):
        inputs = keras.Input((4,))
        x = SyncBatchNormalization(name="statistics")(layers.Dense(7, name="hidden")(inputs))
        model = DistributedModel(inputs, layers.Dense(2, name="head")(x))
        model.compile("adam", "mse")
    before = state_of(model)
    with pytest.raises(CheckpointError) as caught:
        load_weights(model, saved)
    for part in ("hidden", "(4, 7)", "(4, 6)", saved.name, "partial=True"):
        assert part in str(caught.value)
    assert same_state(state_of(model)[:6], before[:6])


@pytest.mark.parametrize("name", ["model.weights.h5", "model.h5", "model.keras"])
def test_another_optimizer_is_refused_and_nothing_changed(tmp_path, name):
    model = make_model(2, "Adam")
    five_steps(model)
    write(model, tmp_path / name)
    other = make_model(2, "SGD")
    before = state_of(other)
    with pytest.raises(CheckpointError, match="same weights, random layers and optimizer"):
        load_weights(other, tmp_path / name)
    assert same_state(state_of(other), before)
    report = load_weights(other, tmp_path / name, partial=True)
    assert len(report.restored) == len(other.weights)
    assert same_state([w.numpy() for w in other.weights], [w.numpy() for w in model.weights])


def test_stock_loading_of_hdf5_without_a_strategy_is_refused_in_fit(tmp_path):
    model = make_model(None)
    five_steps(model)
    model.save(tmp_path / "model.h5")
    with pytest.raises(SetupError, match=r"mirrored_keras\.load_model"):
        keras.saving.load_model(tmp_path / "model.h5").fit(X, Y, verbose=0)


def test_logged_where_a_model_went(tmp_path, caplog):
    save_model(make_model(2), tmp_path / "model.keras")
    with caplog.at_level("INFO", "mirrored_keras"):
        load_model(tmp_path / "model.keras", strategy_for(3))
        load_model(tmp_path / "model.keras")
    assert "mirrored over 3 replicas" in caplog.text
    assert "saved on 2 replicas, loaded as a plain model on one device" in caplog.text


def test_plain_needs_a_functional_model(tmp_path):
    model = WrongConfig(2)
    model(X[:1])
    with pytest.raises(CheckpointError):
        save_model(model, tmp_path / "model.keras", plain=True)
    assert not pathlib.Path(tmp_path / "model.keras").exists()


def small(optimizer="adam", loss="mse", dropout=False):
    with scope_of(2):
        inputs = keras.Input((4,))
        x = layers.Dropout(0.2)(inputs) if dropout else inputs
        model = DistributedModel(inputs, layers.Dense(2, name="head")(x))
        model.compile(optimizer, loss)
    return model


def test_slots_of_another_optimizer_with_the_same_shapes(tmp_path):
    with scope_of(2):
        model = small(keras.optimizers.SGD(gradient_accumulation_steps=3))
        other = small(keras.optimizers.SGD(use_ema=True))
    save_weights(model, tmp_path / "model.weights.h5")
    with pytest.raises(CheckpointError, match="SGD with use_ema', but 'SGD with gradient_accumulation_steps'"):
        load_weights(other, tmp_path / "model.weights.h5")


def test_another_number_of_random_layers(tmp_path):
    save_weights(small(dropout=True), tmp_path / "model.weights.h5")
    with pytest.raises(CheckpointError, match="0 seed generators, but 1"):
        load_weights(small(), tmp_path / "model.weights.h5")
    assert "head/kernel" in load_weights(small(), tmp_path / "model.weights.h5", partial=True).restored


def test_vocabularies_are_in_no_hdf5_file(tmp_path):
    lookup = layers.StringLookup()
    lookup.adapt(np.array(["a", "b"]))
    inputs = keras.Input((1,), dtype="string")
    model = DistributedModel(inputs, layers.Embedding(4, 2)(lookup(inputs)))
    with pytest.raises(CheckpointError, match="no vocabularies"):
        save_model(model, tmp_path / "model.h5")
    save_model(model, tmp_path / "model.keras")
    assert load_model(tmp_path / "model.keras").layers[1].get_vocabulary() == lookup.get_vocabulary()


def test_names_of_weights_are_no_names_of_models(tmp_path):
    with pytest.raises(CheckpointError, match="is that of weights alone"):
        save_model(small(), tmp_path / "model.weights.h5")


@pytest.mark.parametrize("name", WHOLE)
def test_losses_that_cannot_be_written_down(tmp_path, name):
    with pytest.raises(CheckpointError, match="What `compile` was given is written down"):
        save_model(small(loss=functools.partial(keras.losses.huber, delta=0.1)), tmp_path / name)


def test_in_the_scope_of_another_strategy(tmp_path):
    model = small()
    save_model(model, tmp_path / "model.keras")
    with scope_of(3):
        for call in (
            lambda: load_model(tmp_path / "model.keras", strategy_for(2)),
            lambda: save_model(model, tmp_path / "other.keras"),
            lambda: load_weights(model, tmp_path / "model.keras"),
        ):
            with pytest.raises(SetupError, match="outside the scope of other strategies"):
                call()


def test_merged_weights_are_warned_about(tmp_path):
    model = small()
    with scope_of(2):
        model.get_layer("head").enable_lora(2)
        model.compile("adam", "mse")
    with pytest.warns(UserWarning, match="'head' have LoRA weights"):
        save_model(model, tmp_path / "model.keras")


def test_long_names_and_names_of_bytes(tmp_path):
    model = small()
    for name in ("l" * 240 + ".keras", "Größe 2.keras"):
        save_model(model, tmp_path / name)
        save_model(model, os.fsencode(tmp_path / name))
        assert load_model(os.fsencode(tmp_path / name)).built


def test_layers_frozen_after_compile_are_warned_about(tmp_path):
    model = small()
    model.fit(X, Y, verbose=0)
    model.get_layer("head").trainable = False
    with pytest.warns(UserWarning, match="'head' were frozen or made trainable after `compile`"):
        save_model(model, tmp_path / "model.keras")


def test_a_model_that_is_not_compiled_says_that_its_optimizer_was_passed_over(tmp_path, caplog):
    save_weights(small(), tmp_path / "model.weights.h5")
    inputs = keras.Input((4,))
    other = DistributedModel(inputs, layers.Dense(2, name="head")(inputs))
    assert load_weights(other, tmp_path / "model.weights.h5").optimizer == "passed over: the model is not compiled"
    assert "compile it first" in caplog.text


def test_a_folder_without_checkpoints(tmp_path):
    with pytest.raises(CheckpointError, match="a folder without such checkpoints"):
        load_weights(small(), tmp_path)
