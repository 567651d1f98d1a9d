"""Data: TFRecord files written and read as global batches, and a dataset that ships with the package.

The names below are loaded at first use, so that importing this package does not start TensorFlow.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirrored_keras.data.batch_sizes import (
        global_batch_size,
        per_replica_batch_size,
        rows_of_batches,
        rows_per_replica,
    )
    from mirrored_keras.data.checking import BadRecord, check_tfrecords
    from mirrored_keras.data.digits import digits_dataset
    from mirrored_keras.data.features import Feature
    from mirrored_keras.data.index import Index
    from mirrored_keras.data.reading import tfrecord_dataset
    from mirrored_keras.data.writing import write_tfrecords

__all__ = [
    "BadRecord",
    "Feature",
    "Index",
    "check_tfrecords",
    "digits_dataset",
    "global_batch_size",
    "per_replica_batch_size",
    "rows_of_batches",
    "rows_per_replica",
    "tfrecord_dataset",
    "write_tfrecords",
]

_MODULES = {
    "BadRecord": "checking",
    "Feature": "features",
    "Index": "index",
    "check_tfrecords": "checking",
    "digits_dataset": "digits",
    "global_batch_size": "batch_sizes",
    "per_replica_batch_size": "batch_sizes",
    "rows_of_batches": "batch_sizes",
    "rows_per_replica": "batch_sizes",
    "tfrecord_dataset": "reading",
    "write_tfrecords": "writing",
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
