"""In double precision rounding is no excuse: R = 3 against one replica and against the formula."""

import pytest

from devices import strategy_for
from invariance.case import train
from invariance.cases import ALL_CASES
from invariance.compare import assert_as_reference, assert_same
from mirrored_keras import DistributedModel

pytestmark = [
    pytest.mark.filterwarnings("ignore:Gradients do not exist"),
    pytest.mark.usefixtures("float64"),
]

CASES = {case.name: case for case in ALL_CASES[::8]}


@pytest.mark.parametrize("name", CASES)
def test_float64(name):
    one = train(CASES[name], DistributedModel)
    assert_as_reference(CASES[name], one)
    assert_same(CASES[name], one, train(CASES[name], DistributedModel, strategy_for(3)))
