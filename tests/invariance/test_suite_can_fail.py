"""The suite sees what it is there to see: plain Keras on two replicas fails it, by a wide margin."""

import keras
import pytest

from devices import strategy_for
from invariance.case import first_weights, train
from invariance.cases import ALL_CASES
from invariance.compare import weights_error

CASES = {case.name: case for case in ALL_CASES}

# name of a case, and the smallest error that plain Keras makes in it on two replicas
WRONG_IN_KERAS = {
    "SGD momentum": 1e-3,  # a short last batch
    "kernel regularizer": 1e-3,  # an empty replica
    "SGD clipnorm": 1e-3,  # clips before the sum
    "own compute_loss": 1e-1,  # twice the gradient
    "loss function of a scalar": 1e-1,  # twice the gradient
    "activity regularizer": 1e-3,
    "class weights": 1e-3,
}


@pytest.mark.parametrize("name", WRONG_IN_KERAS)
def test_plain_keras_fails(name):
    case = CASES[name]
    one = train(case, keras.Model)
    two = train(case, keras.Model, strategy_for(2))
    assert weights_error(one.weights, two.weights, first_weights(case)) > WRONG_IN_KERAS[name]
