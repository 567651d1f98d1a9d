"""One row as the bytes of a `tf.train.Example`; what does not fit its feature is refused with the row's number."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from mirrored_keras.data.features import IMAGES, STARTS, STORED_AS, Feature
from mirrored_keras.data.rows import feature_of_value
from mirrored_keras.errors import DataError, message


class Encoder:
    """Makes records of rows.

    Args:
        schema: What the rows must be; `None` takes what the first row is.

    Attributes:
        schema: Likewise.
    """

    def __init__(self, schema: Mapping[str, Feature] | None):
        self.schema: dict[str, Feature] = dict(schema or {})

    def __call__(self, row: Mapping[str, Any], number: int) -> bytes:
        """Returns a record.

        Args:
            row: The values by name.
            number: Of the row, for messages.

        Returns:
            A serialized `tf.train.Example`.

        Raises:
            DataError: A feature is missing or too many, or a value is not of its type and shape.
        """
        if not self.schema:
            self.schema = {name: feature_of_value(value) for name, value in row.items()}
        if row.keys() != self.schema.keys():
            missing, unknown = self.schema.keys() - row.keys(), row.keys() - self.schema.keys()
            raise DataError(
                message(
                    "Every row must have the features of the schema, and no others.",
                    f"row={number}, missing={sorted(missing)}, unknown={sorted(unknown)}",
                    "give each row the same names, or leave out what is not to be written",
                )
            )
        features = {name: _encode(row[name], feature, name, number) for name, feature in self.schema.items()}
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def _encode(value, feature, name, number):
    if feature.encoding in IMAGES and isinstance(value, bytes):
        _check_picture(value, feature, name, number)
        return _bytes([value])  # a picture's file as it is
    array = _as_array(value, feature, name, number)
    if feature.encoding == "list":
        return _list(array, feature)
    if feature.encoding == "raw":
        array = np.ascontiguousarray(array)
        return _bytes([array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()])
    if feature.encoding == "tensor":
        return _bytes([tf.io.serialize_tensor(array).numpy()])
    encode = tf.io.encode_jpeg if feature.encoding == "jpeg" else tf.io.encode_png
    return _bytes([encode(array).numpy()])


def _check_picture(data, feature, name, number):
    if not data.startswith(STARTS[feature.encoding]):
        raise _refused(name, number, f"bytes that do not begin like {feature.encoding}", feature)
    decode = tf.io.decode_jpeg if feature.encoding == "jpeg" else tf.io.decode_png
    try:
        shape = decode(data, channels=feature.shape[2]).shape
    except tf.errors.InvalidArgumentError:
        raise _refused(name, number, f"a picture ({feature.encoding}) that cannot be decoded", feature) from None
    if any(expected not in (None, size) for expected, size in zip(feature.shape, shape, strict=True)):
        raise _refused(name, number, f"a picture of shape {tuple(shape)}", feature)


def _bytes(values):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def _list(array, feature):
    stored, values = STORED_AS[feature.dtype], array.reshape(-1)
    if stored == "int64":
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values.astype(np.int64).tolist()))
    if stored == "float32":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values.astype(np.float32).tolist()))
    return _bytes([text if isinstance(text, bytes) else str(text).encode() for text in values.tolist()])


def _as_array(value, feature, name, number):
    try:
        # NumPy's own strings lose the zero bytes at their end
        array = np.asarray(value, object) if feature.dtype == "string" else np.asarray(value)
    except ValueError:  # NumPy refuses nested lists of different length
        raise _refused(name, number, "a list of lists of different length", feature) from None
    fits = len(array.shape) == len(feature.shape) and all(
        expected in (None, size) for expected, size in zip(feature.shape, array.shape, strict=True)
    )
    if not fits:
        raise _refused(name, number, f"an array of shape {array.shape}", feature)
    if feature.dtype == "string":
        others = [text for text in array.reshape(-1).tolist() if not isinstance(text, (bytes, str))]
        if others:
            raise _refused(name, number, type(others[0]).__name__, feature)
        return array
    wanted = tf.dtypes.as_dtype(feature.dtype).as_numpy_dtype
    if array.dtype == wanted or not array.size:
        return array.astype(wanted, copy=False)
    if array.dtype.kind in "USO" or (array.dtype.kind in "fc" and feature.dtype in ("bool", *_WHOLE)):
        raise _refused(name, number, f"{array.dtype.name}", feature)
    cast = array.astype(wanted)
    # a float32 feature takes the floats of Python, rounded; whole numbers are not rounded or wrapped
    if array.dtype.kind in "iub" and not np.array_equal(cast, array):
        raise _refused(name, number, f"{array.dtype.name} from {array.min()} to {array.max()}", feature)
    return cast


_WHOLE = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def _refused(name, number, received, feature):
    shape = f"{feature.dtype} of shape {feature.shape}"
    return DataError(
        message(
            "Every row must have the type and shape that the schema says, or that the first row had.",
            f"row={number}, feature={name!r}: {received}, where {shape} is expected",
            "correct the row; for rows of different length `None` as first size in a schema, "
            f'Feature("{feature.dtype}", (None,))',
        )
    )
