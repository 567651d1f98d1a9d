"""Policies are functions of a list of checkpoints and of what has passed: tables."""

import math

import pytest

from mirrored_keras import SetupError, policies
from mirrored_keras.checkpoint.policies import Saved, Since


def since(steps=0, epochs=0, seconds=0.0, epoch_ends=False):
    return Since(steps, epochs, seconds, epoch_ends)


@pytest.mark.parametrize(
    ("policy", "passed", "is_due"),
    [
        (policies.every_steps(3), since(steps=2), False),
        (policies.every_steps(3), since(steps=3), True),
        (policies.every_steps(3), since(steps=5), True),
        (policies.every_epochs(2), since(epochs=1, epoch_ends=True), False),
        (policies.every_epochs(2), since(epochs=2, epoch_ends=True), True),
        (policies.every_epochs(1), since(epochs=1), False),
        (policies.every_minutes(0.5), since(seconds=29.9), False),
        (policies.every_minutes(0.5), since(seconds=30), True),
        (policies.every_steps(9) | policies.every_epochs(1), since(steps=4, epochs=1, epoch_ends=True), True),
        (policies.every_steps(9) | policies.every_epochs(1), since(steps=4), False),
    ],
)
def test_saving(policy, passed, is_due):
    assert policy.is_due(passed) is is_due


SAVED = [
    Saved(epoch, 0, metrics, f"{epoch}")
    for epoch, metrics in enumerate(
        [{"loss": 3.0}, {"loss": 1.0}, {}, {"loss": math.nan}, {"loss": 2.0}, {"loss": 1.0}]
    )
]


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (policies.latest(2), [4, 5]),
        (policies.latest(9), [0, 1, 2, 3, 4, 5]),
        (policies.best(1, "loss"), [1]),
        (policies.best(2, "loss"), [1, 5]),
        (policies.best(1, "loss", mode="max"), [0]),
        (policies.best(9, "loss"), [0, 1, 4, 5]),
        (policies.best(1, "val_loss"), []),
        (policies.latest(1) | policies.best(1, "loss", mode="max"), [0, 5]),
        (policies.best(1, "loss") | policies.latest(2), [1, 4, 5]),
    ],
)
def test_retention(policy, kept):
    assert sorted(saved.epoch for saved in policy.kept(SAVED)) == kept


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: policies.every_steps(0),
        lambda: policies.every_steps(2.5),
        lambda: policies.every_minutes(-1),
        lambda: policies.latest(True),
        lambda: policies.best(0, "loss"),
    ],
)
def test_numbers_must_be_positive(wrong):
    with pytest.raises(SetupError, match="takes a positive number"):
        wrong()


def test_mode():
    with pytest.raises(SetupError, match='`mode` is "min" or "max"'):
        policies.best(1, "loss", mode="auto")
