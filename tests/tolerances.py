"""The only numbers that tests compare with: those that `mirrored_keras.parity.check` compares with."""

from mirrored_keras.parity.tolerances import (
    FLOAT32_AT_MOST,
    FLOAT32_PER_STEP,
    FLOAT64,
    SMALLEST_LOG,
    logs,
    weights,
)

__all__ = ["FLOAT32_AT_MOST", "FLOAT32_PER_STEP", "FLOAT64", "SMALLEST_LOG", "logs", "weights"]
