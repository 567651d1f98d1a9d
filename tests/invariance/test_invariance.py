"""THE PROMISE: R replicas train as one; one trains as the formula says, and as Keras where it is right.

Each case names the numbers of replicas it runs on; of those of the covering arrays one in three is run. To run every
case, on other numbers:

    MIRRORED_KERAS_TESTS=all MIRRORED_KERAS_REPLICAS=1,2,3,4 pytest tests/invariance/test_invariance.py
"""

import functools
import os

import keras
import pytest

import tolerances
from amount import is_one_in
from devices import strategy_for
from invariance.case import first_weights, train
from invariance.cases import ALL_CASES
from invariance.compare import (
    assert_as_reference,
    assert_same,
    assert_within,
    logs_error,
    weights_error,
)
from invariance.data import TAILS
from mirrored_keras import DistributedModel

# Weights without a gradient are cases, too.
pytestmark = pytest.mark.filterwarnings("ignore:Gradients do not exist")

CASES = {
    case.name: case for case in ALL_CASES if not case.name.startswith(("tokens-", "rows-")) or is_one_in(3, case.name)
}
STOCK_IS_RIGHT = [name for name, case in CASES.items() if case.stock != "wrong"]


def replica_counts(case):
    """Returns the numbers of replicas that a case runs on."""
    wanted = os.environ.get("MIRRORED_KERAS_REPLICAS")
    return [int(count) for count in wanted.split(",")] if wanted else case.replicas


@functools.cache
def one_replica(name):
    """One replica is trained once per case; every other way is compared with it."""
    return train(CASES[name], DistributedModel)


@pytest.mark.parametrize("name", CASES)
def test_one_replica_is_the_reference(name):
    assert_as_reference(CASES[name], one_replica(name))


@pytest.mark.table(every=3)
@pytest.mark.parametrize("name", STOCK_IS_RIGHT)
def test_one_replica_is_keras(name):
    case = CASES[name]
    stock, received = train(case, keras.Model), one_replica(name)
    allowed = 0.0 if case.stock_is_bit_equal else tolerances.weights(case.steps)
    error = weights_error(stock.weights, received.weights, first_weights(case))
    assert_within(error, allowed, "weights")
    assert set(stock.history) == set(received.history)
    rows, batch = case.rows_and_batch
    for key in stock.history:
        # In a compiled step Keras averages losses per output over batches, not over rows.
        if not (rows % batch and key.endswith("_loss")):
            error = logs_error({key: stock.history[key]}, {key: received.history[key]})
            assert_within(error, tolerances.logs(case.steps), f"History {key}")


@pytest.mark.parametrize(
    ("name", "replicas"),
    [(name, count) for name, case in CASES.items() for count in replica_counts(case)],
)
def test_replicas_are_one(name, replicas):
    received = train(CASES[name], DistributedModel, strategy_for(replicas))
    assert_same(CASES[name], one_replica(name), received)


def test_every_optimizer_has_a_case():
    exported = {
        name
        for name, value in vars(keras.optimizers).items()
        if isinstance(value, type) and issubclass(value, keras.optimizers.Optimizer)
    }
    covered = {type(case.optimizer()).__name__ for case in ALL_CASES}
    broken_in_keras = set() if hasattr(keras.optimizers, "MultiOptimizer") else {"Muon"}  # see updates.py
    assert exported - covered == {"Optimizer"} | broken_in_keras


def test_every_tail_has_a_case():
    assert {case.tail for case in ALL_CASES} == set(TAILS)
