"""Randomised invariance: what nobody thought of.

Every test is named after its seed, and its case is printed when it fails. Other seeds:

    MIRRORED_KERAS_SEEDS=100-140 pytest tests/invariance/test_random_cases.py
"""

import os

import pytest

from devices import strategy_for
from invariance.case import train
from invariance.compare import assert_as_reference, assert_same
from invariance.random_case import random_case
from mirrored_keras import DistributedModel

pytestmark = [pytest.mark.filterwarnings("ignore:Gradients do not exist"), pytest.mark.table(every=3)]


def seeds():
    first, last = os.environ.get("MIRRORED_KERAS_SEEDS", "1-12").split("-")
    return range(int(first), int(last) + 1)


@pytest.mark.parametrize("seed", seeds())
def test_random_case(seed):
    case, replicas = random_case(seed)
    print(f"MIRRORED_KERAS_SEEDS={seed}-{seed}: {case.name}")
    one = train(case, DistributedModel)
    assert_as_reference(case, one)
    assert_same(case, one, train(case, DistributedModel, strategy_for(replicas)))
