"""Every metric that Keras exports: on three replicas the numbers of one, after every batch, epoch and evaluation."""

import keras
import numpy as np
import pytest

import tolerances
from invariance.compare import assert_within, largest
from metrics.families import FAMILIES, logs

STEPS = 8
FAMILY_OF = {name: family for family, (classes, *_) in FAMILIES.items() for name in classes}


def exported():
    found = {name for name in dir(keras.metrics) if isinstance(getattr(keras.metrics, name), type)}
    return found - {"Metric"}  # the abstract one


def test_table_is_complete():
    assert exported() == set(FAMILY_OF)


@pytest.mark.parametrize("name", FAMILY_OF)
def test_metric(name):
    one, three = logs(FAMILY_OF[name], None), logs(FAMILY_OF[name], 3)
    for where in one:
        for number in (name, f"weighted_{name}"):
            a, b = (np.asarray(side[where][number], "float64") for side in (one, three))
            assert np.isfinite(a).all() and a.shape == b.shape
            error = largest([(a - b) / np.maximum(np.abs(a), tolerances.SMALLEST_LOG)])
            assert_within(error, tolerances.logs(STEPS), f"{number} in {where}")
    seen = np.unique(np.round(one["batch logs"][name], 9))
    assert len(seen) > 1, "a number that never changes proves nothing"
