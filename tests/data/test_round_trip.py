"""What is written comes back: random schemas, shapes, types, tails; every way of giving rows."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.record_sets import ROWS, SCHEMA, flat, images, labels, write_plain
from mirrored_keras import DataError, DistributedModel
from mirrored_keras.cli.__main__ import main
from mirrored_keras.data import Feature, check_tfrecords, tfrecord_dataset, write_tfrecords
from mirrored_keras.data.features import ITEM_BYTES, STORED_AS

NUMBERS = sorted(ITEM_BYTES)


@st.composite
def features(draw):
    encoding = draw(st.sampled_from(["raw", "list", "tensor", "png"]))
    if encoding == "png":
        return Feature(draw(st.sampled_from(["uint8", "uint16"])), (3, 2, draw(st.sampled_from([1, 3]))), encoding)
    dtype = draw(st.sampled_from(sorted(STORED_AS) if encoding == "list" else NUMBERS))
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    if draw(st.booleans()):
        shape = (None, *shape[1:])
    return Feature(dtype, shape, encoding)


def values_of(feature, rows, generator):
    """Returns random rows of a feature."""
    shapes = [[generator.integers(0, 4) if n is None else n for n in feature.shape] for _ in range(rows)]
    if feature.dtype == "string":
        return [np.array([f"ä{n}\0".encode() for n in range(int(np.prod(s)))], object).reshape(s) for s in shapes]
    dtype = tf.dtypes.as_dtype(feature.dtype).as_numpy_dtype
    numbers = [generator.integers(0, 256, (*shape, 2)) for shape in shapes]
    if feature.dtype.startswith("complex"):
        return [(n[..., 0] - 1j * n[..., 1]).astype(dtype) for n in numbers]
    signed = feature.dtype.startswith(("int", "float", "bfloat"))
    return [np.asarray(n[..., 0] // 2 * (-1 if signed else 1)).astype(dtype) for n in numbers]


def rows_of(batch):
    """Returns the rows of a batch of one feature as lists."""
    return batch.to_list() if isinstance(batch, tf.RaggedTensor) else batch.numpy().tolist()


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    schema=st.dictionaries(st.sampled_from("abcd"), features(), min_size=1, max_size=3),
    rows=st.integers(1, 9),
    batch=st.integers(1, 5),
    shards=st.integers(1, 3),
    tail=st.sampled_from(["keep", "drop", "pad"]),
    compression=st.sampled_from(["", "GZIP", "ZLIB"]),
    seed=st.integers(0, 99),
)
def test_rows_come_back_in_order(tmp_path_factory, schema, rows, batch, shards, tail, compression, seed):
    folder = tmp_path_factory.mktemp("records")
    generator = np.random.default_rng(seed)
    written = {name: values_of(feature, rows, generator) for name, feature in schema.items()}
    write_tfrecords(written, folder, schema=schema, shards=shards, compression=compression, verbose=0)
    if tail == "drop" and rows < batch:
        return
    dataset = tfrecord_dataset(folder, global_batch_size=batch, tail=tail)
    expected = {"keep": rows, "drop": rows - rows % batch, "pad": rows + -rows % batch}[tail]
    batches = list(dataset)
    assert int(dataset.cardinality()) == len(batches) == -(-expected // batch)
    for name, feature in schema.items():
        spec = dataset.element_spec[name]
        assert spec.dtype.name == feature.dtype
        assert tuple(spec.shape)[1:] == feature.shape
        if not feature.is_ragged:
            assert (spec.shape[0] is None) == bool(expected % batch)
        read = [row for part in batches for row in rows_of(part[name])]
        assert len(read) == expected
        assert read[:rows] == [value.tolist() for value in written[name]][:expected]
    if tail == "pad":
        weights = np.concatenate([part["sample_weight"] for part in batches])
        np.testing.assert_array_equal(weights, np.arange(expected) < rows)


def generator_of_rows():
    for row, image in enumerate(images(7)):
        yield {"image": image, "label": row}


@pytest.mark.parametrize(
    "data",
    [
        {"image": images(7), "label": np.arange(7)},
        {"image": list(images(7)), "label": list(range(7))},
        generator_of_rows,
        generator_of_rows(),
        list(generator_of_rows()),
        tf.data.Dataset.from_tensor_slices({"image": images(7), "label": np.arange(7)}),
    ],
    ids=["arrays", "lists", "function", "generator", "list of rows", "dataset"],
)
def test_every_form_of_rows(data, tmp_path):
    index = write_tfrecords(data, tmp_path, shards=3, verbose=0)
    assert index.schema == SCHEMA
    assert [shard.rows for shard in index.shards] == [3, 2, 2]
    (batch,) = tfrecord_dataset(tmp_path, global_batch_size=7)
    np.testing.assert_array_equal(batch["image"], images(7))
    np.testing.assert_array_equal(batch["label"], np.arange(7))


def test_parts_of_a_tuple_have_names(tmp_path):
    write_tfrecords((np.arange(4.0), np.arange(4), np.ones(4, np.float32)), tmp_path, verbose=0)
    dataset = tfrecord_dataset(tmp_path, global_batch_size=4, inputs="x", targets="y", sample_weight="sample_weight")
    ((x, y, weight),) = dataset
    assert (x.dtype, y.dtype, weight.dtype) == (tf.float64, tf.int64, tf.float32)


def test_inputs_are_chosen_by_name(tmp_path):
    write_tfrecords({"a": np.arange(3), "b": np.arange(3) * 2, "c": np.ones(3)}, tmp_path, verbose=0)
    options = {"global_batch_size": 3}
    (((a, b), c),) = tfrecord_dataset(tmp_path, inputs=["a", "b"], targets="c", **options)
    np.testing.assert_array_equal(b, 2 * a)
    ((inputs, c),) = tfrecord_dataset(tmp_path, inputs={"one": "a", "two": "b"}, targets="c", **options)
    np.testing.assert_array_equal(inputs["two"], 2 * inputs["one"])
    ((inputs,),) = tfrecord_dataset(tmp_path, inputs="a", **options)
    ((doubled, c),) = tfrecord_dataset(tmp_path, inputs="a", targets="c", map=lambda x, y: (2 * x, y), **options)
    np.testing.assert_array_equal(doubled, 2 * inputs)
    assert np.sum(c) == 3


def test_padding_keeps_the_weights_of_rows(tmp_path):
    write_tfrecords((np.arange(5.0), np.arange(5), np.full(5, 3, np.float32)), tmp_path, verbose=0)
    options = {"global_batch_size": 4, "inputs": "x", "targets": "y", "tail": "pad"}
    (_, (*_, weight)) = tfrecord_dataset(tmp_path, sample_weight="sample_weight", **options)
    np.testing.assert_array_equal(weight, [3, 0, 0, 0])
    (_, (x, _, weight)) = tfrecord_dataset(tmp_path, **options)
    np.testing.assert_array_equal(weight, [1, 0, 0, 0])
    assert x[0] == 4
    assert set(x.numpy()) <= set(range(5))


def test_pictures_of_different_size_are_made_equal_row_by_row(tmp_path):
    schema = {"image": Feature("uint8", (None, None, 3), "jpeg"), "label": Feature("int64")}
    rows = [{"image": np.full((8 + n, 9, 3), 7, np.uint8), "label": n} for n in range(3)]
    write_tfrecords(rows, tmp_path, schema=schema, verbose=0)

    def resize(row):
        return {**row, "image": tf.image.resize(row["image"], (4, 4))}

    dataset = tfrecord_dataset(tmp_path, global_batch_size=3, map_rows=resize)
    assert tuple(dataset.element_spec["image"].shape) == (3, 4, 4, 3)
    (batch,) = dataset
    np.testing.assert_allclose(batch["image"], 7, atol=1)


def test_rows_of_a_ragged_dataset(tmp_path):
    ragged = tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int32)
    data = tf.data.Dataset.from_tensor_slices({"ids": ragged, "name": tf.constant(["a", "b\0", "c"])})
    index = write_tfrecords(data, tmp_path, verbose=0)
    assert index.schema == {"ids": Feature("int32", (None,), "raw"), "name": Feature("string")}
    (batch,) = tfrecord_dataset(tmp_path, global_batch_size=3)
    assert batch["ids"].to_list() == [[1, 2], [], [3]]
    assert batch["name"].numpy().tolist() == [b"a", b"b\0", b"c"]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_model_trains_on_ragged_features(tmp_path, make_strategy, replicas):
    rows = [{"ids": np.arange(n % 4), "y": float(n)} for n in range(7)]
    schema = {"ids": Feature("int64", (None,)), "y": Feature("float32")}
    write_tfrecords(rows, tmp_path, schema=schema, verbose=0)
    data = tfrecord_dataset(
        tmp_path, global_batch_size=4, inputs="ids", targets="y", map=lambda ids, y: (ids.to_tensor(shape=(None, 3)), y)
    )
    with make_strategy(replicas).scope():
        inputs = keras.Input((3,))
        model = DistributedModel(inputs, keras.layers.Dense(1, kernel_initializer="ones")(inputs))
        model.compile("sgd", "mse")
    loss = model.evaluate(data, verbose=0)
    sums = np.array([row["ids"].sum() for row in rows])
    np.testing.assert_allclose(loss, np.mean((sums - np.arange(7)) ** 2), rtol=1e-6)


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_files_of_others_are_counted_and_read(tmp_path, compression):
    files = write_plain(tmp_path, compression=compression)
    for given_files in (tmp_path, files, f"{tmp_path}/part-*.tfrecord", [tmp_path]):
        dataset = tfrecord_dataset(given_files, SCHEMA, global_batch_size=16)
        assert int(dataset.cardinality()) == 3
        assert flat(labels(dataset)) == [*range(0, ROWS, 2), *range(1, ROWS, 2)]


@pytest.mark.parametrize("shuffle", [False, True, 2])
def test_other_file_systems(shuffle):
    folder = "ram://records/of/a/test"
    data = {"x": np.arange(6.0)}
    for _ in range(2):
        write_tfrecords(data, folder, verbose=0, overwrite=True)
        assert [batch["x"].numpy().tolist() for batch in tfrecord_dataset(folder, global_batch_size=6)] == [[*range(6)]]
    schema = {"x": Feature("float64")}
    tf.io.gfile.remove(f"{folder}/data.index.json")
    (batch,) = tfrecord_dataset(f"{folder}/data-*", schema, global_batch_size=6, shuffle=shuffle)
    assert sorted(batch["x"].numpy()) == [*range(6)]


def test_files_of_other_file_systems_are_inspected_and_checked(capsys):
    folder = "ram://records/of/another/test"
    rows = {"x": np.arange(6.0), "name": [f"row {n}" for n in range(6)]}
    schema = {"x": Feature("float64"), "name": Feature("string")}
    index = write_tfrecords(rows, folder, schema=schema, compression="GZIP", shards=2, verbose=0)
    assert check_tfrecords(folder) == []
    assert main(["inspect", folder, "--check"]) == 0
    output = capsys.readouterr().out
    assert "2 files, 6 records" in output and "0 bad records and files" in output
    path = f"{folder}/{index.shards[1].name}"
    with tf.io.gfile.GFile(path, "rb") as file:
        data = file.read()
    tf.io.gfile.remove(path)
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(data[:-12])
    assert main(["inspect", folder]) == 1
    with pytest.raises(DataError, match="in the size that it states"):
        tfrecord_dataset(folder, global_batch_size=2)
    kept = tfrecord_dataset(folder, global_batch_size=6, errors="skip")
    assert {0.0, 2.0, 4.0} <= {x for batch in kept for x in batch["x"].numpy()}
