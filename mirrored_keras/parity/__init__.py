"""Proofs that N replicas train as one: an oracle that shares no code with the step, and a check of any model.

`check` trains a model on one replica, on several, and by an independent loop, and names what differs.
`reference` is a training loop written from the formula, for one device. Import it by its full
name: `from mirrored_keras.parity import reference`.
"""

import importlib
from typing import Any

__all__ = ["Finding", "Report", "check"]

# Loaded at first use: the oracle must be there without the package that it proves.
_MODULES = {"check": "checking", "Finding": "findings", "Report": "report"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
