"""Callbacks and helpers of daily work: examples per second, a ledger of steps, a learning-rate range test.

The names below are loaded at first use, so that importing this package does not start TensorFlow.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirrored_keras.callbacks.range_test import RangeTest, learning_rate_range_test
    from mirrored_keras.callbacks.step_ledger import StepLedger
    from mirrored_keras.callbacks.throughput import Throughput, one_replica_rate

__all__ = ["RangeTest", "StepLedger", "Throughput", "learning_rate_range_test", "one_replica_rate"]

_MODULES = {
    "RangeTest": "range_test",
    "StepLedger": "step_ledger",
    "Throughput": "throughput",
    "learning_rate_range_test": "range_test",
    "one_replica_rate": "throughput",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
