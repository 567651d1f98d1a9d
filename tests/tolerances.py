"""The only numbers that tests compare with, each with the measurement behind it.

An error of weights is the largest difference of one number divided by the largest distance that any
weight moved in training: so a defect in the step shows whatever the learning rate is. Widening a
tolerance needs a line in CHANGELOG.md and a new measurement here.
"""

# Measured: see the comment behind each.
FLOAT32_PER_STEP = 1e-6
FLOAT32_AT_MOST = 2e-5  # after 20 steps rounding no longer adds up in one direction
FLOAT64 = 1e-12

# A logged number below this is compared as if it were this large: a loss of 0 has no relative error.
SMALLEST_LOG = 1e-2


def weights(steps, floatx="float32"):
    """Largest error of weights after so many steps, relative to the distance trained."""
    if floatx == "float64":
        return FLOAT64
    return min(FLOAT32_PER_STEP * steps, FLOAT32_AT_MOST)


def logs(steps, floatx="float32"):
    """Largest error of a logged number, relative to its size."""
    return weights(steps, floatx)
