"""The methods of `keras.Model` that write and read files: atomic, with a checksum, nothing lost."""

import functools
import os
from typing import Any

import keras

import mirrored_keras
from mirrored_keras.replica import workers

_WHOLE = (".keras", ".h5", ".hdf5")


class SafeFiles(keras.Model):
    """Lets `save`, `save_weights` and `load_weights`, and all callbacks that call them, use this package's files.

    Of several workers the chief alone writes.
    """

    @functools.wraps(keras.Model.save)
    def save(self, filepath: Any, overwrite: bool = True, zipped: bool | None = None, **kwargs: Any) -> None:
        if not workers.is_chief(self.distribute_strategy):
            return
        include_optimizer = kwargs.get("include_optimizer", True)
        if _is_own(filepath, overwrite, _WHOLE) and zipped is not False and include_optimizer:
            mirrored_keras.save_model(self, filepath)
        else:
            super().save(filepath, overwrite=overwrite, zipped=zipped, **kwargs)

    @functools.wraps(keras.Model.save_weights)
    def save_weights(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        if not workers.is_chief(self.distribute_strategy):
            return
        if _is_own(filepath, overwrite, (".weights.h5",)) and not any(kwargs.values()):
            mirrored_keras.save_weights(self, filepath)
        else:
            super().save_weights(filepath, overwrite=overwrite, **kwargs)

    @functools.wraps(keras.Model.export)
    def export(self, *args: Any, **kwargs: Any) -> None:
        if workers.is_chief(self.distribute_strategy):
            super().export(*args, **kwargs)

    @functools.wraps(keras.Model.load_weights)
    def load_weights(self, filepath: Any, skip_mismatch: bool = False, **kwargs: Any) -> None:
        if _is_own(filepath, True, (".weights.h5", *_WHOLE)) and not any(kwargs.values()):
            mirrored_keras.load_weights(self, filepath, partial=skip_mismatch)
        else:
            super().load_weights(filepath, skip_mismatch=skip_mismatch, **kwargs)


def known_by_its_bare_name(cls: type) -> type:
    """Registers a class under its name alone: whole-model HDF5 files leave the package out.

    Args:
        cls: The class.

    Returns:
        `cls`.
    """
    keras.saving.get_custom_objects()[cls.__name__] = cls
    return cls


def _is_own(path, overwrite, suffixes):
    # Keras asks on the terminal before it overwrites; other places and layouts are Keras' own, too
    if not isinstance(path, (str, os.PathLike)) or "://" in os.fspath(path):
        return False
    return os.fspath(path).endswith(suffixes) and (overwrite or not os.path.exists(path))
