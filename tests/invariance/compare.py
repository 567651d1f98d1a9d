"""Comparisons that say what differs, by how much, and what is allowed."""

import keras
import numpy as np

import tolerances
from invariance.case import Case, Outcome, first_weights, train_reference


def largest(arrays):
    """Returns the largest magnitude in a list of arrays: NaN if there is one, 0 if there is none."""
    return float(np.max([np.max(np.abs(a)) for a in arrays if np.size(a)], initial=0.0))


def weights_error(expected, received, start):
    """Returns the largest difference of a weight, relative to the largest distance trained."""
    assert [w.shape for w in expected] == [w.shape for w in received]
    difference = largest([a - b for a, b in zip(expected, received, strict=True)])
    trained = largest([a - b for a, b in zip(expected, start, strict=True)])
    return difference / trained if trained else difference


def logs_error(expected, received):
    """Returns the largest difference of two dicts of numbers or lists, relative to each number."""
    assert set(expected) == set(received), "other numbers are logged"
    errors = [0.0]
    for name, value in expected.items():
        a, b = np.asarray(value, "float64"), np.asarray(received[name], "float64")
        assert a.shape == b.shape, f"{name}: {a.shape} numbers, not {b.shape}"
        errors.append(largest([(a - b) / np.maximum(np.abs(a), tolerances.SMALLEST_LOG)]))
    return float(np.max(errors))


def assert_within(error, tolerance, what):
    """Fails with the numbers; NaN is never within."""
    assert error <= tolerance, f"{what}: off by {error:.2e}, allowed {tolerance:.0e}"


def assert_same(case: Case, expected: Outcome, received: Outcome) -> None:
    """Compares weights, logs of every epoch and batch, and the evaluation."""
    allowed = tolerances.logs(case.steps, keras.config.floatx())
    error = weights_error(expected.weights, received.weights, first_weights(case))
    assert_within(error, tolerances.weights(case.steps, keras.config.floatx()), "weights")
    assert_within(logs_error(expected.history, received.history), allowed, "History")
    assert len(expected.batch_logs) == len(received.batch_logs), "another number of batches"
    for number, (a, b) in enumerate(zip(expected.batch_logs, received.batch_logs, strict=True)):
        assert_within(logs_error(a, b), allowed, f"logs of batch {number}")
    assert_within(logs_error(expected.evaluation, received.evaluation), allowed, "evaluate")


def assert_as_reference(case: Case, outcome: Outcome) -> None:
    """Compares weights, loss and losses per output with the hand-written loop."""
    result = train_reference(case)
    error = weights_error(result.weights, outcome.weights, first_weights(case))
    assert_within(error, tolerances.weights(case.steps, keras.config.floatx()), "weights")
    expected = {"loss": result.epoch_losses}
    if len(result.epoch_output_losses[0]) > 1:
        for index, output in enumerate(case.output_names):
            expected[f"{output}_loss"] = [epoch[index] for epoch in result.epoch_output_losses]
    received = {key: outcome.history[key] for key in expected}
    allowed = tolerances.logs(case.steps, keras.config.floatx())
    assert_within(logs_error(expected, received), allowed, "losses in History")
