"""Saved on R replicas, restored on others: equal to the bit when loaded, equal to ten steps after five more."""

import os

import pytest

import tolerances
from checkpoint.saved_models import (
    FORMATS,
    OPTIMIZERS,
    five_steps,
    make_model,
    relative_difference,
    same_state,
    state_of,
)
from devices import strategy_for
from mirrored_keras import DistributedModel, load_model, load_weights, save_model, save_weights

pytestmark = pytest.mark.table(every=3)

REPLICAS = (None, 1, 2, 4)
# Every pair of replica counts takes minutes; by default each optimizer restores on another of the four.
EVERY_PAIR = bool(os.environ.get("MIRRORED_KERAS_EVERY_PAIR"))


def write(model, path):
    save_weights(model, path) if path.name.endswith(".weights.h5") else save_model(model, path)


def read(path, replicas, optimizer):
    if not path.name.endswith(".weights.h5"):
        return load_model(path, strategy=strategy_for(replicas))
    model = make_model(replicas, optimizer)
    report = load_weights(model, path)
    assert not report.kept
    return model


@pytest.mark.parametrize("replicas", REPLICAS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_restored_to_the_bit_and_trained_on(tmp_path, optimizer, replicas):
    model = make_model(replicas, optimizer)
    five_steps(model)
    for name in FORMATS:
        write(model, tmp_path / name)
    saved, start, drawn = state_of(model), model.get_weights(), model.get_random_state()[:-1]
    five_steps(model)
    first = REPLICAS.index(replicas) + list(OPTIMIZERS).index(optimizer)
    for index in range(first, first + (4 if EVERY_PAIR else 1)):
        others = REPLICAS[index % 4]
        for name in FORMATS:
            restored = read(tmp_path / name, others, optimizer)
            assert type(restored) is type(model)
            assert restored.distribute_strategy.num_replicas_in_sync == (others or 1)
            assert same_state(state_of(restored), saved), name
            assert restored.get_random_state()[:-1] == drawn
            if name == FORMATS[index % len(FORMATS)]:
                history = five_steps(restored)
                assert sorted(history.history) == ["loss", "mae"]
                assert relative_difference(restored, model, start) <= tolerances.weights(10), (name, others)


def test_saving_changes_nothing_of_the_live_model(tmp_path):
    model, other = make_model(2), make_model(2)
    five_steps(model)
    five_steps(other)
    before, config = state_of(model), model.get_compile_config()
    for name in FORMATS:
        write(model, tmp_path / name)
    assert same_state(state_of(model), before)
    assert model.get_compile_config() == config
    five_steps(model)
    five_steps(other)
    assert same_state(state_of(model), state_of(other))
    save_model(model, tmp_path / "later.keras")
    assert load_model(tmp_path / "later.keras").optimizer.iterations == 10


@pytest.mark.parametrize("name", ["model.keras", "model.h5"])
def test_methods_and_functions_of_keras_write_and_read_the_same_files(tmp_path, name):
    import keras

    model = make_model(2)
    five_steps(model)
    model.save(tmp_path / name)
    with strategy_for(2).scope():
        restored = keras.saving.load_model(tmp_path / name)
    assert isinstance(restored, DistributedModel)
    assert same_state(state_of(restored), state_of(model))
    keras.saving.save_model(model, tmp_path / f"stock_{name}")
    assert same_state(state_of(load_model(tmp_path / f"stock_{name}", strategy_for(2))), state_of(model))
    assert model.get_compile_config()["optimizer"]["class_name"] == "Adam"
