"""Throughput counts rows exactly and sees a slow input; no number of seconds is expected of any machine."""

import io
import time
from contextlib import redirect_stdout

import keras
import numpy as np
import pytest
import tensorflow as tf

from callbacks.recording import scalars
from mirrored_keras import DistributedModel, SetupError, pace
from mirrored_keras.callbacks import Throughput, one_replica_rate
from model.regression import X, Y, dataset, made_under, perceptron

NAMES = {"examples_per_second", "examples_per_second_per_replica", "input_wait_share"}


class Clocked(Throughput):
    """Keeps what the numbers were computed from."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seen = []

    def _described(self, rows, waited, seconds):
        self.seen.append((rows, waited, seconds))
        return super()._described(rows, waited, seconds)


@pytest.mark.parametrize("steps", [1, "auto"])
@pytest.mark.parametrize("replicas", [None, 3])
def test_logs(replicas, steps, tmp_path):
    model = made_under(replicas, lambda: perceptron(DistributedModel, steps_per_execution=steps))
    clock, board = Clocked(baseline=10.0), keras.callbacks.TensorBoard(tmp_path)
    history = model.fit(
        dataset(),
        epochs=2,
        verbose=0,
        shuffle=False,
        validation_data=(X, Y),
        callbacks=[clock, *([board] if steps == 1 else [])],
    ).history
    assert NAMES | {"scaling_efficiency"} <= set(history)
    first, second = clock.seen[0], clock.seen[-1]
    assert first[0] == 12, "the first execution, of 7 rows, is traced and not timed"
    assert second[0] == 19
    rows, waited, seconds = second
    assert history["examples_per_second"][1] == pytest.approx(rows / seconds)
    assert history["examples_per_second_per_replica"][1] == pytest.approx(rows / seconds / (replicas or 1))
    assert history["scaling_efficiency"][1] == pytest.approx(rows / seconds / (replicas or 1) / 10)
    assert history["input_wait_share"][1] == pytest.approx(min(waited / seconds, 1))
    if steps == 1:
        (events,) = (tmp_path / "train").glob("*.tfevents.*")
        assert "epoch_input_wait_share, step 1" in scalars(events)


def test_steps_may_run_ahead_of_it():
    assert not pace.looks_at_batches(Throughput(), "train")


def test_it_is_in_the_progress_bar():
    model = made_under(2, lambda: perceptron(DistributedModel))
    text = io.StringIO()
    with redirect_stdout(text):
        model.fit(dataset(), epochs=2, verbose=2, shuffle=False, callbacks=[Throughput()])
    assert text.getvalue().count("input_wait_share") == 2


@pytest.mark.parametrize("steps", [1, 4])
def test_slow_input_shows(steps):
    """The same model with rows at hand and with rows that come late: the share tells them apart."""

    def late(x):
        time.sleep(0.05)
        return x

    def shares(data):
        model = made_under(2, lambda: perceptron(DistributedModel, steps_per_execution=steps))
        clock = Clocked()
        model.fit(data.repeat(), epochs=2, steps_per_epoch=8, verbose=0, shuffle=False, callbacks=[clock])
        return clock.seen[-1]

    def slow(x, y):
        return tf.ensure_shape(tf.numpy_function(late, [x], tf.float32), (None, 5)), y

    _, waited, seconds = shares(dataset(6).take(3).map(slow))
    _, waited_at_hand, _ = shares(dataset(6).take(3).cache().prefetch(8))
    assert waited > seconds / 10
    assert waited > 2 * waited_at_hand


def test_an_epoch_of_one_execution():
    model = made_under(2, lambda: perceptron(DistributedModel))
    history = model.fit(X, Y, batch_size=19, epochs=1, verbose=0, callbacks=[Throughput()]).history
    assert history["examples_per_second"][0] > 0


def test_the_baseline_is_measured_on_one_replica(make_strategy):
    built = []

    def build():
        built.append(perceptron(DistributedModel))
        return built[-1]

    rate = one_replica_rate(build, dataset().take(1), steps=3)
    assert np.isfinite(rate) and rate > 0
    assert built[0].distribute_strategy.num_replicas_in_sync == 1
    with make_strategy(2).scope(), pytest.raises(SetupError, match="measured without a strategy"):
        one_replica_rate(build, dataset())


@pytest.mark.parametrize("baseline", [0, -1.0, "fast"])
def test_a_baseline_is_a_positive_number(baseline):
    with pytest.raises(SetupError, match="A baseline is a positive number"):
        Throughput(baseline=baseline)
