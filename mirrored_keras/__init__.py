"""N replicas train as one: a drop-in for `keras.Model` whose maths does not depend on the number of replicas.

The names below are the whole public API. They are loaded at first use, so that importing the package, or
asking its command for help, does not start TensorFlow.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirrored_keras.batch_norm import SyncBatchNormalization, sync_batch_norm
    from mirrored_keras.checkpoint import policies
    from mirrored_keras.checkpoint.checkpoint_callback import Checkpoint
    from mirrored_keras.checkpoint.exporting import export_model
    from mirrored_keras.checkpoint.loading import load_model
    from mirrored_keras.checkpoint.restoring import RestoreReport, load_weights
    from mirrored_keras.checkpoint.resume import Resume
    from mirrored_keras.checkpoint.saving import save_model, save_weights
    from mirrored_keras.errors import (
        BatchError,
        CheckpointError,
        CollectiveError,
        DataError,
        MirroredKerasError,
        SetupError,
    )
    from mirrored_keras.gathering import gather_rows
    from mirrored_keras.global_batch import GlobalBatch
    from mirrored_keras.memory_fit import find_micro_batches
    from mirrored_keras.model import DistributedModel
    from mirrored_keras.replica.collective import check_collective
    from mirrored_keras.replica.devices import mirrored_strategy
    from mirrored_keras.whole_batch_loss import GlobalBatchLoss
    from mirrored_keras.whole_batch_metric import GlobalBatchMetric

__version__ = "0.1.0"

__all__ = [
    "BatchError",
    "Checkpoint",
    "CheckpointError",
    "CollectiveError",
    "DataError",
    "DistributedModel",
    "GlobalBatch",
    "GlobalBatchLoss",
    "GlobalBatchMetric",
    "MirroredKerasError",
    "RestoreReport",
    "Resume",
    "SetupError",
    "SyncBatchNormalization",
    "check_collective",
    "export_model",
    "find_micro_batches",
    "gather_rows",
    "load_model",
    "load_weights",
    "mirrored_strategy",
    "policies",
    "save_model",
    "save_weights",
    "sync_batch_norm",
]

_ERRORS = ("BatchError", "CheckpointError", "CollectiveError", "DataError", "MirroredKerasError", "SetupError")
_MODULES = {
    "DistributedModel": "mirrored_keras.model",
    "GlobalBatch": "mirrored_keras.global_batch",
    "Checkpoint": "mirrored_keras.checkpoint.checkpoint_callback",
    "Resume": "mirrored_keras.checkpoint.resume",
    "find_micro_batches": "mirrored_keras.memory_fit",
    "SyncBatchNormalization": "mirrored_keras.batch_norm",
    "GlobalBatchLoss": "mirrored_keras.whole_batch_loss",
    "GlobalBatchMetric": "mirrored_keras.whole_batch_metric",
    "gather_rows": "mirrored_keras.gathering",
    "check_collective": "mirrored_keras.replica.collective",
    "mirrored_strategy": "mirrored_keras.replica.devices",
    "sync_batch_norm": "mirrored_keras.batch_norm",
    "export_model": "mirrored_keras.checkpoint.exporting",
    "load_model": "mirrored_keras.checkpoint.loading",
    "load_weights": "mirrored_keras.checkpoint.restoring",
    "RestoreReport": "mirrored_keras.checkpoint.restoring",
    "save_model": "mirrored_keras.checkpoint.saving",
    "save_weights": "mirrored_keras.checkpoint.saving",
    "policies": "mirrored_keras.checkpoint.policies",
    **dict.fromkeys(_ERRORS, "mirrored_keras.errors"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    if name not in _ERRORS:
        from mirrored_keras import requirements

        requirements.check()
    if name == "policies":
        value = importlib.import_module("mirrored_keras.checkpoint.policies")
    else:
        value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
