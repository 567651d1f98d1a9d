"""Scaling rules and the warm-up that leads up to them, by themselves, in files and in a training."""

import keras
import numpy as np
import pytest

from mirrored_keras import DistributedModel, SetupError, load_model, save_model
from mirrored_keras.schedules import ScaledWarmup, scale_factor
from model.regression import assert_trains_as_one, made_under, perceptron


def rates(schedule, steps=(0, 5, 10, 20)):
    return [float(schedule(step)) for step in steps]


def test_the_rules():
    assert [scale_factor(512, 128, rule=rule) for rule in ("constant", "linear", "sqrt")] == [1.0, 4.0, 2.0]
    assert scale_factor(64, 128) == 0.5


def test_the_warm_up_goes_from_the_base_rate_to_the_scaled_one():
    schedule = ScaledWarmup(0.1, batch=512, base_batch=128, warmup_steps=10)
    assert rates(schedule) == pytest.approx([0.1, 0.25, 0.4, 0.4])
    assert rates(ScaledWarmup(0.1, batch=512, base_batch=128)) == pytest.approx([0.4] * 4)


def test_it_multiplies_a_schedule():
    inner = keras.optimizers.schedules.CosineDecay(0.1, 40)
    schedule = ScaledWarmup(inner, batch=512, base_batch=128, rule="sqrt", warmup_steps=10)
    expected = np.array(rates(inner)) * [1.0, 1.5, 2.0, 2.0]
    assert rates(schedule) == pytest.approx(expected, rel=1e-6)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert rates(again) == rates(schedule)


@pytest.mark.parametrize("form", ["model.keras", "model.h5"])
def test_it_is_saved_with_the_optimizer(form, tmp_path, make_strategy):
    def build():
        schedule = ScaledWarmup(0.1, batch=8, base_batch=2, warmup_steps=4)
        return perceptron(DistributedModel, optimizer=keras.optimizers.SGD(schedule))

    save_model(made_under(2, build), tmp_path / form)
    loaded = load_model(tmp_path / form, strategy=make_strategy(3))
    assert float(keras.ops.convert_to_numpy(loaded.optimizer.learning_rate)) == pytest.approx(0.1)
    assert loaded.optimizer.get_config()["learning_rate"]["config"]["warmup_steps"] == 4


def test_replicas_train_as_one():
    schedule = ScaledWarmup(0.02, batch=8, base_batch=2, warmup_steps=4)
    assert_trains_as_one(lambda: perceptron(DistributedModel, optimizer=keras.optimizers.SGD(schedule)))


def test_what_is_wrong_is_refused():
    with pytest.raises(SetupError, match="one of the rules"):
        ScaledWarmup(0.1, batch=8, base_batch=2, rule="cubic")
    with pytest.raises(SetupError, match="positive numbers of rows"):
        scale_factor(0, 2)
    with pytest.raises(SetupError, match="number of steps, 0 or more"):
        ScaledWarmup(0.1, batch=8, base_batch=2, warmup_steps=-1)
