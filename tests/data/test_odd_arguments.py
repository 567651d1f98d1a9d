"""Arguments that nobody should give and somebody will: each is taken as it is meant, or refused in words."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from data.record_sets import example, flat, labels, write_file
from mirrored_keras import DataError
from mirrored_keras.data import Feature, check_tfrecords, tfrecord_dataset, write_tfrecords

ROWS = {"label": np.arange(6)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("odd")
    write_tfrecords(ROWS, path, shards=2, verbose=0)
    return path


@pytest.mark.parametrize(
    "files",
    [
        lambda path: path.glob("*.tfrecord"),
        lambda path: (str(file) for file in path.glob("*.tfrecord")),
        lambda path: set(path.glob("*.tfrecord")),
        lambda path: np.array(sorted(map(str, path.glob("*.tfrecord")))),
        lambda path: str(path).encode(),
        lambda path: f"{path}/",
        lambda path: [path, f"{path}/*.tfrecord"],
    ],
    ids=["glob of pathlib", "generator", "set", "array of text", "bytes", "slash", "twice"],
)
def test_files_in_every_form(folder, files):
    assert sorted(flat(labels(tfrecord_dataset(files(folder), global_batch_size=6)))) == [*range(6)]


@pytest.mark.parametrize("files", [None, 3, [], [None], [3, "a"], "", "no/such/folder", [["a"]], iter([])])
def test_files_that_cannot_be(files):
    with pytest.raises(DataError, match="There must be at least one TFRecord file"):
        tfrecord_dataset(files, global_batch_size=2)
    with pytest.raises(DataError, match="There must be at least one TFRecord file"):
        check_tfrecords(files)


def test_a_folder_named_like_a_file_is_no_file(tmp_path):
    write_file(tmp_path / "a.tfrecord", [example(label=3)])
    (tmp_path / "b.tfrecord").mkdir()
    assert labels(tfrecord_dataset(tmp_path, global_batch_size=1)) == [[3]]


@pytest.mark.parametrize("given", ["", b"", None, 3, "a file"])
def test_folders_that_cannot_be(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("a file").write_text("text")
    with pytest.raises(DataError, match="Records are written into a folder"):
        write_tfrecords(ROWS, given, verbose=0)
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]


@pytest.mark.parametrize("given", ["new/ä b/", b"bytes", pathlib.Path("new")])
def test_folders_in_every_form(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tfrecords(ROWS, given, shards=1, verbose=0)
    assert labels(tfrecord_dataset(given, global_batch_size=6)) == [[*range(6)]]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "A row is a dictionary from names to values"),
        ({1: np.arange(3)}, "A row is a dictionary from names to values"),
        ([{1: 2}], "A row is a dictionary from names to values"),
        ([{}], "A row is a dictionary from names to values"),
        (None, "Records are written from rows"),
        (3, "Records are written from rows"),
        (lambda: None, "Records are written from rows"),
        ([None], "NoneType, where string"),
        ({"when": np.array(["2020-01-01"], "datetime64[D]")}, "The type of a feature is the name of a type"),
        ({"text": "one text"}, "rows of text=None"),
        ([1, "a"], "row=1, feature='x': str"),
        ([True, 2], "row=1, feature='x': int64 from 2 to 2, where bool"),
        ([[1, 2], [3]], "row=1, feature='x': an array of shape"),
        ([1j, 1], "no error"),
    ],
)
def test_odd_rows(data, words, tmp_path):
    if words == "no error":
        assert write_tfrecords(data, tmp_path, verbose=0).schema == {"x": Feature("complex128")}
        return
    with pytest.raises(DataError, match=words):
        write_tfrecords(data, tmp_path, verbose=0)
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"map_rows": lambda row: row["label"]}, "`map_rows` makes a dictionary of features"),
        ({"map_rows": lambda row: (row, row)}, "`map_rows` makes a dictionary of features"),
        ({"map_rows": lambda row: {}}, "`map_rows` makes a dictionary of features"),
        ({"inputs": "label", "targets": "y"}, r"unknown=\['y'\]"),
        ({"inputs": "label", "sample_weight": 3}, r"unknown=\[3\]"),
    ],
)
def test_odd_functions_and_names(folder, options, words):
    with pytest.raises(DataError, match=words):
        tfrecord_dataset(folder, global_batch_size=2, **options)


def test_names_that_need_quotes(tmp_path):
    name = "a/b c'\"ä"
    write_tfrecords({name: np.arange(3)}, tmp_path, prefix="[x] *", shards=1, verbose=0)
    (batch,) = tfrecord_dataset(tmp_path, global_batch_size=3)
    assert batch[name].numpy().tolist() == [0, 1, 2]
    assert check_tfrecords(tmp_path) == []


def test_shards_without_rows(tmp_path):
    write_tfrecords({"label": np.arange(2)}, tmp_path, shards=5, compression="ZLIB", verbose=0)
    for shuffle in (False, True):
        assert sorted(flat(labels(tfrecord_dataset(tmp_path, global_batch_size=2, shuffle=shuffle)))) == [0, 1]
    assert tf.io.gfile.exists(f"{tmp_path}/data-00004-of-00005.tfrecord")
