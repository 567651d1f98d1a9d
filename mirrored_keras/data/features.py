"""What a record holds: the name, type, shape and encoding of every feature, as Python code or JSON."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from mirrored_keras.errors import DataError, message

#: Bytes of a number.
ITEM_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}
_INTEGER_LISTS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
_FLOAT_LISTS = ("float16", "bfloat16", "float32")
#: What the lists of a `tf.train.Example` hold without loss, and as what.
STORED_AS = {
    **dict.fromkeys(_INTEGER_LISTS, "int64"),
    **dict.fromkeys(_FLOAT_LISTS, "float32"),
    "string": "string",
}
ENCODINGS = ("list", "raw", "tensor", "jpeg", "png")
IMAGES = ("jpeg", "png")
#: What the bytes of pictures begin with.
STARTS = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}


@dataclasses.dataclass(frozen=True)
class Feature:
    """The type, shape and encoding of one feature of a record, for one row.

    Encodings: `"list"` is an int64, float or bytes list; `"raw"` is the bytes of a tensor, little-endian, as
    `ndarray.tobytes()` and `tf.io.decode_raw` have them; `"tensor"` is what `tf.io.serialize_tensor` makes; `"jpeg"`
    and `"png"` are pictures.

    Args:
        dtype: Name of the type of the tensor that a row has after reading.
        shape: Shape of a row. The first dimension may be `None`: rows of different length, read as a ragged tensor.
            Height and width of pictures may be `None` where `map_rows` makes them equal.
        encoding: How the bytes hold it. `None` chooses `"list"` for strings and for single numbers that a list holds
            without loss, else `"raw"`. Defaults to `None`.

    Raises:
        DataError: The type, the shape or the encoding does not exist, or they do not go together.

    Example:
        >>> from mirrored_keras.data import Feature
        >>> Feature("uint8", (28, 28))
        Feature('uint8', (28, 28), 'raw')
        >>> Feature("int64")
        Feature('int64', (), 'list')
    """

    dtype: str
    shape: tuple[int | None, ...] = ()
    encoding: str | None = None

    def __post_init__(self):
        if self.dtype not in ITEM_BYTES and self.dtype != "string":
            raise DataError(
                message(
                    'The type of a feature is the name of a type of numbers, or "string".',
                    f"dtype={self.dtype!r}",
                    'Feature("float32", (28, 28)), with one of ' + ", ".join([*ITEM_BYTES, "string"]),
                )
            )
        object.__setattr__(self, "shape", tuple(self.shape))
        if self.encoding is None:
            object.__setattr__(self, "encoding", _usual_encoding(self.dtype, self.shape))
        _check_shape(self.shape, self.encoding)
        _check_encoding(self)

    def __repr__(self) -> str:
        return f"Feature({self.dtype!r}, {self.shape!r}, {self.encoding!r})"

    @property
    def is_ragged(self) -> bool:
        """Whether rows may differ in length."""
        return self.encoding not in IMAGES and self.shape[:1] == (None,)

    @property
    def inner_size(self) -> int:
        """Numbers in a row, or, for rows of different length, in one step along the first dimension."""
        return math.prod(size for size in self.shape if size is not None)

    @property
    def raw_bytes(self) -> int:
        """Bytes of what `inner_size` counts."""
        return self.inner_size * ITEM_BYTES[self.dtype]


#: What all records of a data set hold, by name.
Schema = Mapping[str, Feature]


def to_json(schema: Schema) -> dict[str, Any]:
    """Returns a schema as what JSON holds.

    Args:
        schema: The features by name.
    """
    return {name: dataclasses.asdict(feature) for name, feature in schema.items()}


def from_json(content: Mapping[str, Any]) -> dict[str, Feature]:
    """Returns the schema that `to_json` described.

    Args:
        content: What JSON held.

    Raises:
        DataError: It is no schema.
    """
    return {
        name: Feature(values["dtype"], tuple(values["shape"]), values["encoding"]) for name, values in content.items()
    }


def as_code(schema: Schema, *, comments: Mapping[str, list[str]] | None = None) -> str:
    """Returns a schema as Python code, ready to paste.

    Args:
        schema: The features by name.
        comments: Lines to stand above a feature. Defaults to none.

    Example:
        >>> from mirrored_keras.data import Feature
        >>> print(as_code({"label": Feature("int64")}))
        schema = {
            "label": Feature("int64", (), "list"),
        }
    """
    lines = ["schema = {"]
    for name, feature in schema.items():
        lines += [f"    # {line}" for line in (comments or {}).get(name, [])]
        code = repr(feature).replace("'", '"')
        lines.append(f"    {_quoted(name)}: {code},")
    return "\n".join([*lines, "}"])


def check_schema(schema: Any) -> dict[str, Feature]:
    """Returns a schema given by a user as a dictionary of its own.

    Args:
        schema: What was given.

    Raises:
        DataError: It is no mapping from names to features, or it is empty.
    """
    if (
        not isinstance(schema, Mapping)
        or not schema
        or not all(isinstance(name, str) and isinstance(feature, Feature) for name, feature in schema.items())
    ):
        raise DataError(
            message(
                "`schema` is a dictionary from the names of the features to `Feature`.",
                f"schema={schema!r}",
                'schema={"image": Feature("uint8", (28, 28)), "label": Feature("int64")}; '
                "`mirrored-keras inspect FILE` prints it",
            )
        )
    return dict(schema)


def _quoted(name):
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _usual_encoding(dtype, shape):
    return "list" if dtype == "string" or (dtype in STORED_AS and shape == ()) else "raw"


def _check_shape(shape, encoding):
    free = (0, 1) if encoding in IMAGES else (0,)
    if not all((size is None and axis in free) or _is_size(size) for axis, size in enumerate(shape)):
        raise DataError(
            message(
                "Sizes of a row are positive; only the first may be `None`, and height and width of pictures.",
                f"shape={shape}, encoding={encoding!r}",
                'Feature("float32", (None, 3)), or write the shape as a feature of its own',
            )
        )


def _is_size(size):
    return isinstance(size, int) and not isinstance(size, bool) and size > 0


def _check_encoding(feature):
    allowed = {
        "list": feature.dtype in STORED_AS,
        "raw": feature.dtype in ITEM_BYTES,
        "tensor": True,
        "jpeg": feature.dtype == "uint8" and len(feature.shape) == 3 and feature.shape[2] in (1, 3),
        "png": feature.dtype in ("uint8", "uint16") and len(feature.shape) == 3 and feature.shape[2] in (1, 2, 3, 4),
    }
    if not allowed.get(feature.encoding, False):
        raise DataError(
            message(
                "The encoding of a feature must hold its type and shape without loss of digits: lists hold whole "
                "numbers of up to 63 bits, numbers of up to 32 bits with a point, and strings; pictures are "
                "uint8, PNG also uint16, of shape (height, width, channels).",
                f"dtype={feature.dtype!r}, shape={feature.shape}, encoding={feature.encoding!r}",
                f"one of {', '.join(ENCODINGS)}; Feature({feature.dtype!r}, {feature.shape}) chooses one",
            )
        )
