"""Bad trials are stopped, by rules that are easy to check by hand."""

import math

import pytest

from mirrored_keras import tuning
from mirrored_keras.tuning import MedianPruner, SuccessiveHalvingPruner
from tuning.searches import build_eager, search


def test_median():
    pruner = MedianPruner(first_epochs=1, first_trials=2)
    others = [[5.0, 4.0, 3.0], [7.0, 6.0], [9.0, 8.0]]
    assert pruner.why_stop([99.0], others, direction="min") is None  # one epoch for everyone
    assert pruner.why_stop([99.0, 6.1], others, direction="min") is not None  # the median of 4, 6 and 8 is 6
    assert pruner.why_stop([99.0, 5.9], others, direction="min") is None
    assert pruner.why_stop([5.9, 99.0], others, direction="min") is None  # by its best value so far
    assert pruner.why_stop([99.0, 6.1, 6.1], others, direction="min") is None  # one rival came as far
    assert pruner.why_stop([99.0, math.nan], others, direction="min") is not None
    assert pruner.why_stop([0.0, 5.9], others, direction="max") is not None
    assert pruner.why_stop([0.0, 6.1], others, direction="max") is None


def test_successive_halving():
    pruner = SuccessiveHalvingPruner(first_epochs=2, factor=2)
    others = [[5.0, 4.0, 1.0, 1.0], [7.0, 6.0], [9.0, 8.0]]
    assert pruner.why_stop([99.0], others, direction="min") is None
    assert pruner.why_stop([99.0, 5.0], others, direction="min") is None  # second of four
    assert pruner.why_stop([99.0, 7.0], others, direction="min") is not None  # third of four
    assert pruner.why_stop([99.0, 5.0, 99.0], others, direction="min") is None  # not after three epochs
    assert pruner.why_stop([99.0, 5.0, 99.0, 5.0], others, direction="min") is not None  # second of two
    assert pruner.why_stop([0.0, 7.0], others, direction="max") is None
    assert pruner.why_stop([3.0, 3.0], [], direction="min") is None  # the first one has no rivals


@pytest.mark.parametrize("make", [lambda: MedianPruner(first_trials=0), lambda: SuccessiveHalvingPruner(factor=1)])
def test_options(make):
    with pytest.raises(tuning.TuningError, match="of a pruner is a whole number"):
        make()


class Worse(tuning.HyperModel):
    """Learns less and less from trial to trial."""

    def build(self, hp):
        model = build_eager(hp)
        model.optimizer.learning_rate = hp.Choice("own_rate", [3e-2, 1e-2, 1e-9])
        return model


def test_a_stopped_trial_is_seen_in_the_summary_and_its_score_is_that_so_far(tmp_path, capsys):
    pruner = MedianPruner(first_epochs=1, first_trials=2)
    tuner = tuning.GridSearch(Worse(), "val_loss", max_trials=3, directory=tmp_path, pruner=pruner)
    search(tuner, epochs=3)
    rows = tuner.results()
    assert [row["outcome"] for row in rows] == ["completed", "completed", "stopped"]
    assert "stopped by MedianPruner, epoch 1: best value" in rows[2]["reason"]
    assert rows[2]["best_epoch"] <= 1 and math.isfinite(rows[2]["score"])
    tuner.results_summary()
    assert "Trials: 2 completed, 1 stopped" in capsys.readouterr().out
