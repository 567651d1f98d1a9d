"""Rows, one after the other, from arrays, dictionaries of arrays, generators and datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

import numpy as np

from mirrored_keras.data.features import ITEM_BYTES, Feature
from mirrored_keras.errors import DataError, message

#: Names of what has none: the parts of `(x, y, sample_weight)`.
NAMES = ("x", "y", "sample_weight")
Row = dict[str, Any]


class Rows:
    """The rows of some data, to be read once.

    Args:
        data: An array; a tuple `(x,)`, `(x, y)` or `(x, y, sample_weight)` of arrays; a dictionary of arrays; an
            iterable of rows, or a function that returns one, where a row is a value, a tuple or a dictionary; or a
            `tf.data.Dataset` of rows.

    Attributes:
        total: Number of rows, or `None` where it is not known.
        schema: What the rows hold, or `None` where only the first row can tell.

    Raises:
        DataError: Arrays of different length, or something that has no rows.
    """

    def __init__(self, data: Any):
        self.total: int | None = None
        self.schema: dict[str, Feature] | None = None
        self._read: Callable[[], Iterable[Row]]
        if callable(data) and not _is_dataset(data):
            data = data()
        if _is_dataset(data):
            self._take_dataset(data)
        elif isinstance(data, (Mapping, tuple, np.ndarray)) or (hasattr(data, "__array__") and hasattr(data, "shape")):
            self._take_arrays(_named(data))
        elif isinstance(data, Iterable) and not isinstance(data, (str, bytes)):
            self._read = lambda: map(_named, data)
            self.total = len(data) if isinstance(data, Sized) else None
        else:
            raise DataError(
                message(
                    "Records are written from rows.",
                    f"data={type(data).__name__}",
                    'write_tfrecords({"image": images, "label": labels}, "folder"), or a generator of dictionaries',
                )
            )

    def __iter__(self) -> Iterator[Row]:
        return iter(self._read())

    def _take_arrays(self, columns):
        # lists stay as they are: their rows may differ in length
        columns = {name: value if isinstance(value, list) else np.asarray(value) for name, value in columns.items()}
        lengths = {
            name: len(value) if isinstance(value, list) or value.ndim else None for name, value in columns.items()
        }
        if len(set(lengths.values())) != 1 or None in lengths.values():
            raise DataError(
                message(
                    "All features must have the same number of rows.",
                    ", ".join(f"rows of {name}={length}" for name, length in lengths.items()),
                    "assert len(images) == len(labels)",
                )
            )
        (self.total,) = set(lengths.values())
        if not any(isinstance(value, list) or value.dtype == object for value in columns.values()):
            self.schema = {name: feature_of(value.dtype, value.shape[1:]) for name, value in columns.items()}
        names = list(columns)
        self._read = lambda: (dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True))

    def _take_dataset(self, dataset):
        cardinality = int(dataset.cardinality())
        self.total = cardinality if cardinality >= 0 else None
        spec = _named(dataset.element_spec)
        if all(getattr(part, "shape", None) is not None and part.shape.rank is not None for part in spec.values()):
            self.schema = {name: _feature_of_spec(part) for name, part in spec.items()}
        self._read = lambda: map(_named, dataset.as_numpy_iterator())


def feature_of(dtype: Any, shape: tuple[int | None, ...]) -> Feature:
    """Returns the feature that holds rows of a type and shape.

    Args:
        dtype: A NumPy type.
        shape: The shape of a row.

    Raises:
        DataError: There is no such feature.
    """
    name = np.dtype(dtype).name
    return Feature(name if name in ITEM_BYTES else "string" if np.dtype(dtype).kind in "USOT" else name, shape)


def feature_of_value(value: Any) -> Feature:
    """Returns the feature that holds a row.

    Args:
        value: The row: a number, an array, a string.
    """
    array = np.asarray(value)
    return feature_of(array.dtype, array.shape)


def _feature_of_spec(spec):
    return Feature(spec.dtype.name, tuple(spec.shape))


def _is_dataset(data):
    return hasattr(data, "element_spec") and hasattr(data, "as_numpy_iterator")


def _named(row):
    if isinstance(row, Mapping) and row and all(isinstance(name, str) for name in row):
        return dict(row)
    parts = row if isinstance(row, tuple) else (row,)
    if len(parts) > len(NAMES) or any(isinstance(part, (Mapping, tuple)) for part in parts):
        raise DataError(
            message(
                "A row is a dictionary from names to values, a value, or `(x, y, sample_weight)` of values.",
                f"row={type(row).__name__} of {len(parts)} parts: {', '.join(type(part).__name__ for part in parts)}",
                'yield {"image": image, "label": label}',
            )
        )
    return dict(zip(NAMES, parts, strict=False))
