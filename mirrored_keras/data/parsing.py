"""Serialized records into tensors, many at once; what does not fit names file, record and feature.

Shapes: B is the number of records that are parsed together.
"""

import re
from collections.abc import Callable, Mapping

import tensorflow as tf

from mirrored_keras.data.features import IMAGES, STARTS, STORED_AS, Feature
from mirrored_keras.errors import message

#: A position is file * RECORDS + record; a negative one, -1 - position, is a row that fills up a batch.
RECORDS = 1 << 40
#: Stands for records that the reader could not read. No message of protocol buffers begins with 7.
UNREADABLE = b"\x07 unreadable"
#: What `tf.io.decode_raw` has no kernel for is decoded as the type of the same size.
_DECODED_AS = {"uint32": "int32", "uint64": "int64"}
_HOLE = "\0"  # where a message gets a value that only a graph knows


def make_parser(
    schema: Mapping[str, Feature], paths: list[str], compression: list[str]
) -> Callable[[tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]:
    """Returns the function that parses records.

    Args:
        schema: What they hold.
        paths: Files by number.
        compression: Of each of them.

    Returns:
        A function from positions `(B,)` and records `(B,)` to a dictionary of tensors `(B, *shape)`, ragged where the
        schema says so. Pictures and serialized tensors are decoded one at a time: with them B is 1.
    """
    specification = {name: _specification(feature) for name, feature in schema.items()}

    def parse(positions, records):
        names = _names(positions, paths)
        unreadable = tf.equal(records, UNREADABLE)
        readable = ~tf.reduce_any(unreadable)
        records = _checked(records, readable, lambda: _unreadable(positions, unreadable, paths, compression))
        parsed = tf.io.parse_example(records, specification, example_names=names)
        return {name: _decode(parsed[name], feature, name, names) for name, feature in schema.items()}

    return parse


def make_row_parser(
    schema: Mapping[str, Feature], paths: list[str], compression: list[str]
) -> Callable[[tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]:
    """Returns the function that parses one record.

    Args:
        schema: What it holds.
        paths: Files by number.
        compression: Of each of them.

    Returns:
        A function from a position and a record to a dictionary of tensors of the shapes of the schema.
    """
    parse = make_parser(schema, paths, compression)

    def parse_row(position, record):
        parsed = parse(position[tf.newaxis], record[tf.newaxis])
        return {name: tf.ensure_shape(_only_row(parsed[name]), schema[name].shape) for name in schema}

    return parse_row


def _only_row(values):
    # Indexing would copy the row.
    return values.values if isinstance(values, tf.RaggedTensor) else tf.squeeze(values, 0)


def _specification(feature):
    if feature.encoding != "list":
        return tf.io.FixedLenFeature([], tf.string)
    stored = tf.dtypes.as_dtype(STORED_AS[feature.dtype])
    return tf.io.RaggedFeature(stored) if feature.is_ragged else tf.io.FixedLenFeature(feature.shape, stored)


def _names(positions, paths):
    positions = tf.where(positions < 0, -1 - positions, positions)
    files = tf.gather(tf.constant(paths), positions // RECORDS)
    return tf.strings.join([files, tf.strings.as_string(positions % RECORDS)], " record ")


def _decode(values, feature, name, names):
    if feature.encoding == "list":
        return _from_list(values, feature, name, names)
    if feature.encoding == "raw":
        return _from_bytes(values, feature, name, names)
    if feature.encoding == "tensor":
        value = tf.io.parse_tensor(values[0], feature.dtype, name=_node_name(name))
    else:
        value = _from_picture(values[0], feature, name, names)
    return _of_shape(value, feature, name, names)[tf.newaxis]


def _from_picture(data, feature, name, names):
    starts = tf.strings.substr(data, 0, len(STARTS[feature.encoding])) == STARTS[feature.encoding]
    text = message(
        "A picture must be of the encoding that the schema says.",
        f"{_HOLE}, feature={name}, which does not begin like {feature.encoding}",
        "mirrored-keras inspect FILE",
    )
    data = _checked(data, starts, lambda: _filled_in(text, names[0]))
    if feature.encoding == "jpeg":
        return tf.io.decode_jpeg(data, channels=feature.shape[2], name=_node_name(name))
    return tf.io.decode_png(data, channels=feature.shape[2], dtype=feature.dtype, name=_node_name(name))


def _node_name(name):
    # The decoder fails by itself, and its message has nothing of ours but the name of the node.
    return "feature_" + re.sub(r"\W", "_", name, flags=re.ASCII) + ".mirrored-keras_inspect_--check_names_the_record"


def _of_shape(value, feature, name, names):
    sizes = tf.constant([-1 if size is None else size for size in feature.shape], tf.int32)
    fits = tf.equal(tf.rank(value), len(feature.shape))
    fits = tf.cond(fits, lambda: tf.reduce_all((sizes < 0) | (sizes == tf.shape(value))), lambda: tf.constant(False))
    text = message(
        "Every row must have the shape that the schema says.",
        f"{_HOLE}, feature={name}, shape={_HOLE}, where {feature.shape} is expected",
        "write the right shape into the schema; pictures of different size need `None` and `map_rows`",
    )
    value = _checked(value, fits, lambda: _filled_in(text, names[0], tf.strings.format("{}", tf.shape(value))))
    return tf.ensure_shape(value, feature.shape)


def _from_list(values, feature, name, names):
    if feature.is_ragged:
        lengths = _multiples(values.row_lengths(), feature.inner_size, feature, name, names)
        values = _with_inner_shape(values.flat_values, lengths, feature)
    if values.dtype.name == feature.dtype:
        return values
    return tf.cast(values if values.dtype.is_floating else _in_range(values, feature, name, names), feature.dtype)


def _in_range(values, feature, name, names):
    """Returns whole numbers that a cast does not change."""
    wrong = tf.not_equal(tf.cast(tf.cast(values, feature.dtype), tf.int64), values)
    text = message(
        "Whole numbers must fit into the type that the schema says.",
        f"{_HOLE}, feature={name}, where {feature.dtype} is expected",
        f'Feature("int64", {feature.shape})',
    )

    def failure():
        by_row = tf.reduce_any(wrong, axis=list(range(1, wrong.shape.rank))) if wrong.shape.rank > 1 else wrong
        return _filled_in(text, names[tf.argmax(by_row)])

    flat = wrong.flat_values if isinstance(wrong, tf.RaggedTensor) else wrong
    holds = ~tf.reduce_any(flat)
    if isinstance(values, tf.RaggedTensor):
        return values.with_flat_values(_checked(values.flat_values, holds, failure))
    return _checked(values, holds, failure)


def _from_bytes(values, feature, name, names):
    lengths = tf.cast(tf.strings.length(values), tf.int64)
    if feature.is_ragged:
        lengths = _multiples(lengths, feature.raw_bytes, feature, name, names)
        # all rows as one: their bytes lie one behind the other
        return _with_inner_shape(_numbers(tf.strings.reduce_join(values), feature), lengths, feature)
    wrong = tf.not_equal(lengths, feature.raw_bytes)
    expected = f"{feature.raw_bytes} bytes are"
    values = _checked(
        values, ~tf.reduce_any(wrong), lambda: _wrong_length(lengths, wrong, name, names, expected, feature)
    )
    return tf.reshape(_numbers(values, feature), (values.shape[0] or -1, *feature.shape))


def _numbers(data, feature):
    decoded_as = _DECODED_AS.get(feature.dtype, feature.dtype)
    numbers = tf.io.decode_raw(data, decoded_as)
    return numbers if decoded_as == feature.dtype else tf.bitcast(numbers, feature.dtype)


def _with_inner_shape(numbers, lengths, feature):
    # the lengths are checked, and come first: a wrong one would fail in another place without a name
    with tf.control_dependencies([lengths]):
        numbers = tf.reshape(numbers, (-1, *feature.shape[1:])) if len(feature.shape) > 1 else tf.identity(numbers)
    return tf.RaggedTensor.from_row_lengths(numbers, lengths, validate=False)


def _multiples(lengths, divisor, feature, name, names):
    """Returns lengths divided by what each of them must be a multiple of."""
    if divisor == 1:
        return lengths
    wrong = tf.not_equal(lengths % divisor, 0)
    expected = f"a multiple of {divisor} {'bytes' if feature.encoding == 'raw' else 'numbers'} is"
    lengths = _checked(
        lengths, ~tf.reduce_any(wrong), lambda: _wrong_length(lengths, wrong, name, names, expected, feature)
    )
    return lengths // divisor


def _wrong_length(lengths, wrong, name, names, expected, feature):
    first = tf.argmax(wrong)
    return _filled_in(
        message(
            "A row must be as long as its type and shape say.",
            f"{_HOLE}, feature={name}, length={_HOLE}, where {expected} expected for {feature.dtype} {feature.shape}",
            "mirrored-keras inspect FILE, which prints the types and shapes that fit",
        ),
        names[first],
        tf.strings.as_string(lengths[first]),
    )


def _unreadable(positions, unreadable, paths, compression):
    position = positions[tf.argmax(unreadable)]
    file = tf.where(position < 0, -1 - position, position) // RECORDS
    # only now, when all is lost: which record of the file was the first that could not be read
    records = tf.data.TFRecordDataset(tf.constant(paths)[file], tf.constant(compression)[file]).ignore_errors()
    first = records.reduce(tf.constant(0, tf.int64), lambda count, _: count + 1)
    return _filled_in(
        message(
            "A record must be as it was written: this one does not have its checksum (CRC), or the file has changed.",
            f"{_HOLE} record {_HOLE}",
            'a copy of the file; or errors="skip" to go on without the record',
        ),
        tf.constant(paths)[file],
        tf.strings.as_string(first),
    )


def _filled_in(template, *values):
    pieces = template.replace("\n", " ").split(_HOLE)  # TensorFlow prints a new line as two characters
    joined = [pieces[0]]
    for value, piece in zip(values, pieces[1:], strict=True):
        joined += [value, piece]
    return tf.strings.join(joined)


def _checked(value, holds, text):
    """Returns a value, or fails with a text that is only made if it is needed."""

    def fail():
        with tf.control_dependencies([tf.debugging.Assert(False, [text()])]):
            return tf.constant(False)

    with tf.control_dependencies([tf.cond(holds, lambda: tf.constant(True), fail)]):
        return tf.identity(value)


def decodes_one_by_one(schema: Mapping[str, Feature]) -> bool:
    """Returns whether some feature cannot be decoded for many rows at once.

    Args:
        schema: The features by name.
    """
    return any(feature.encoding in ("tensor", *IMAGES) for feature in schema.values())
