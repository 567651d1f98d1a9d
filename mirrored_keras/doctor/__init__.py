"""What is wrong, or slow, with an environment or a model, before it is trained: findings with reason and fix.

The names below are loaded at first use, so that importing this package does not start TensorFlow.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirrored_keras.doctor.environment import environment_findings
    from mirrored_keras.doctor.findings import Finding, Report
    from mirrored_keras.doctor.static import static_findings

__all__ = ["Finding", "Report", "environment_findings", "static_findings"]

_MODULES = {
    "Finding": "findings",
    "Report": "findings",
    "environment_findings": "environment",
    "static_findings": "static",
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
