"""The numbers that one replica and N replicas are compared with, each with the measurement behind it.

An error of weights is the largest difference of one number divided by the largest distance that any
weight moved in training: so a defect in the step shows whatever the learning rate is. Widening a
tolerance needs a line in CHANGELOG.md and a new measurement here.
"""

# Measured: the noise is 6e-8 per step in float32 and 1.1e-16 in float64; the smallest real defect seen was 1e-3.
FLOAT32_PER_STEP = 1e-6
FLOAT32_AT_MOST = 2e-5  # after 20 steps rounding no longer adds up in one direction
FLOAT64 = 1e-12

# A logged number below this is compared as if it were this large: a loss of 0 has no relative error.
SMALLEST_LOG = 1e-2

# Where one replica with the rows of every batch in another order differs by more than the above, that is the noise of
# this model: what several replicas differ by was at most 1.8 times as much (tests/invariance/test_mixed_precision.py).
TIMES_ANOTHER_ORDER = 4
# ... but no noise above this is believed: it would hide the smallest real defects.
LARGEST_NOISE = {"float16": 5e-2, "bfloat16": 5e-2, "float32": 2e-4, "float64": 1e-9}


def weights(steps: int, floatx: str = "float32") -> float:
    """Returns the largest error of weights after so many steps, relative to the distance trained.

    Args:
        steps: Steps trained.
        floatx: Precision of the weights.

    Returns:
        The tolerance.
    """
    if floatx == "float64":
        return FLOAT64
    return min(FLOAT32_PER_STEP * steps, FLOAT32_AT_MOST)


def logs(steps: int, floatx: str = "float32") -> float:
    """Returns the largest error of a logged number, relative to its size.

    Args:
        steps: Steps trained.
        floatx: Precision of the model.

    Returns:
        The tolerance.
    """
    return weights(steps, floatx)
