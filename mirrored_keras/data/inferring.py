"""The schema of records that come without one, from the first of them."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from mirrored_keras.data.features import ITEM_BYTES, STARTS, Feature
from mirrored_keras.data.record_files import RecordFile
from mirrored_keras.errors import DataError, message

_RECORDS_READ = 100
_CHANNELS = (1, 3, 4, 2, 7, 8, 10, 12, 13)


class Observed:
    """What the first records say about one feature.

    Args:
        name: Of the feature.
    """

    def __init__(self, name: str):
        self.name = name
        self.kinds: set[str] = set()
        self.values: list[Any] = []

    @property
    def lengths(self) -> list[int]:
        """Numbers of values per record."""
        return sorted({len(values) for values in self.values})

    @property
    def byte_lengths(self) -> list[int]:
        """Bytes of the single values."""
        return sorted({len(value) for values in self.values for value in values})

    def add(self, feature: Any) -> None:
        """Adds what a record holds.

        Args:
            feature: A `tf.train.Feature`.
        """
        kind = feature.WhichOneof("kind") or "nothing"
        self.kinds.add(kind)
        self.values.append([] if kind == "nothing" else list(getattr(feature, kind).value))


def observe(files: list[RecordFile]) -> dict[str, Observed]:
    """Reads the first records of each of the first files.

    Args:
        files: What was found.

    Returns:
        What was seen, by name of the feature.

    Raises:
        DataError: A record is no `tf.train.Example`, or there is none.
    """
    observed: dict[str, Observed] = {}
    count = 0
    for file in files:
        records = tf.data.TFRecordDataset(file.path, file.compression).ignore_errors()
        for number, record in enumerate(records.take(_RECORDS_READ - count).as_numpy_iterator()):
            count += 1
            for name, feature in features_of(record, file.path, number).items():
                observed.setdefault(name, Observed(name)).add(feature)
        if count >= _RECORDS_READ:
            break
    if not observed:
        raise DataError(
            message(
                "Without records, nobody can tell what they hold.",
                f"{len(files)} files, {files[0].path!r} first, with {count} records and no feature",
                'schema={"image": Feature("uint8", (28, 28))}',
            )
        )
    for one in observed.values():
        one.values += [[]] * (count - len(one.values))  # where it is missing
    return dict(sorted(observed.items()))


def infer_schema(files: list[RecordFile]) -> dict[str, Feature]:
    """Returns what the records hold, as far as they say it.

    Args:
        files: What was found.

    Raises:
        DataError: A feature holds bytes whose type and shape are not in the records.
    """
    schema = {}
    for name, observed in observe(files).items():
        feature = feature_of(observed)
        if feature is None:
            length = observed.byte_lengths[0]
            raise DataError(
                message(
                    "The type and shape of raw bytes are not in the records: they must be declared.",
                    f"path={files[0].path!r}, feature={name!r}, {length} bytes: {fitting(observed)[0]} or others",
                    f"schema=, as `mirrored-keras inspect {files[0].path}` prints it",
                )
            )
        schema[name] = feature
    return schema


def feature_of(observed: Observed) -> Feature | None:
    """Returns the feature that fits what was seen, or `None` where raw bytes do not say what they are.

    Args:
        observed: What was seen of it.
    """
    lengths = observed.lengths
    shape = () if lengths == [1] else (lengths[0],) if len(lengths) == 1 and lengths[0] else (None,)
    kinds = observed.kinds - {"nothing"}
    if kinds == {"int64_list"}:
        return Feature("int64", shape, "list")
    if kinds == {"float_list"}:
        return Feature("float32", shape, "list")
    values = [value for row in observed.values for value in row]
    return (_encoded(values) if shape == () else None) or (
        Feature("string", shape, "list") if _is_text(values) else None
    )


def fitting(observed: Observed) -> list[Feature]:
    """Returns types and shapes that fit the length of raw bytes, the likeliest first.

    Args:
        observed: What was seen of a feature.
    """
    lengths = observed.byte_lengths
    data = b"".join(value for row in observed.values[:10] for value in row)
    ranked = []
    for dtype in ("uint8", "float32", "int32", "int64", "float64", "uint16", "int16", "float16"):
        size = ITEM_BYTES[dtype]
        if any(length % size for length in lengths):
            continue
        for order, shape in enumerate([(None,)] if len(lengths) > 1 else _shapes(lengths[0] // size)):
            ranked.append((_unlikely(data, dtype), order, Feature(dtype, shape, "raw")))
    return [feature for *_, feature in sorted(ranked, key=lambda item: item[:2])]


def features_of(record: bytes, path: str, number: int) -> Any:
    """Returns the features of a record by name.

    Args:
        record: The record.
        path: Its file, for messages.
        number: Its number in the file.

    Raises:
        DataError: It is something else.
    """
    try:
        return tf.train.Example.FromString(record).features.feature
    except Exception as error:  # protocol buffers have an error of their own for this, in a module of its own
        raise DataError(
            message(
                "A record must be a serialized `tf.train.Example`.",
                f"path={path!r}, record {number}: {error}",
                "read other records with tf.data.TFRecordDataset, and pass that dataset to `fit`",
            )
        ) from None


def _encoded(values):
    for encoding, start in STARTS.items():
        if all(value.startswith(start) for value in values):
            return _picture(values, encoding)
    specs = {_tensor_spec(value) for value in values}
    if None in specs:
        return None
    dtypes, shapes = {dtype for dtype, _ in specs}, {shape for _, shape in specs}
    if len(dtypes) > 1 or len({shape[1:] for shape in shapes}) > 1:
        return None
    (dtype,), shape = dtypes, next(iter(shapes))
    return Feature(dtype, shape if len(shapes) == 1 else (None, *shape[1:]), "tensor")


def _picture(values, encoding):
    deep = encoding == "png" and any(value[24] == 16 for value in values)
    decode = tf.io.decode_jpeg if encoding == "jpeg" else tf.io.decode_png
    shapes = {tuple(decode(value).shape) for value in values}
    channels = max(shape[2] for shape in shapes)
    sizes = [next(iter(s)) if len(s) == 1 else None for s in ({shape[0] for shape in shapes}, {s[1] for s in shapes})]
    return Feature("uint16" if deep else "uint8", (*sizes, channels), encoding)


def _tensor_spec(value):
    """Returns type and shape of a serialized tensor, or `None` if it is none."""
    try:
        proto = type(tf.make_tensor_proto(0)).FromString(value)  # the class itself has no public name
        dtype = tf.dtypes.as_dtype(proto.dtype)
    except Exception:  # bytes that are no message, or of no type, raise several errors
        return None
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    known = dtype.name in ITEM_BYTES and not proto.tensor_shape.unknown_rank and all(size > 0 for size in shape)
    whole = known and len(proto.tensor_content) in (0, math.prod(shape) * dtype.size)
    return (dtype.name, shape) if whole and proto.ByteSize() == len(value) else None


def _is_text(values):
    try:
        text = "".join(value.decode() for value in values)
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character.isspace() for character in text)


def _shapes(numbers):
    """Returns single numbers, square pictures with few channels, and vectors."""
    if numbers == 1:
        return [()]
    squares = [(math.isqrt(numbers // channels), channels) for channels in _CHANNELS if numbers % channels == 0]
    pictures = [
        (side, side) if c == 1 else (side, side, c) for side, c in squares if side > 1 and side * side * c == numbers
    ]
    return [*pictures, (numbers,)]


def _unlikely(data, dtype):
    """Returns how unlikely it is that bytes are numbers of a type.

    Numbers of data are rarely huge or tiny, and of several bytes the high ones differ from the low ones.
    """
    with np.errstate(all="ignore"):
        values = np.frombuffer(data[: len(data) // 16 * 16], dtype).astype(np.float64)
    if dtype == "uint8" or not len(values):
        return 0.2
    with np.errstate(all="ignore"):
        sizes = np.abs(values[values != 0])
        largest = 2.0**14 if dtype.endswith("16") else 1e6
        odd = ~np.isfinite(sizes) | (sizes > largest) | (sizes < 1e-6)
    places = np.frombuffer(data[: len(data) // 16 * 16], np.uint8).reshape(-1, ITEM_BYTES[dtype]).mean(axis=0)
    alike = places.max() < 1.5 * places.min()
    return (float(odd.mean()) if len(sizes) else 0.4) + 0.3 * (dtype == "float16") + 0.5 * bool(alike)
