"""`mirrored-keras inspect` prints code that reads the files, and names what is damaged."""

import os

import numpy as np

from data.record_sets import ROWS, cut, flat, flip, images, labels, write_plain
from mirrored_keras.cli.__main__ import main
from mirrored_keras.data import tfrecord_dataset, write_tfrecords


def schema_of(output):
    namespace = {}
    exec(output[output.index("from mirrored_keras.data import Feature") :].split("\n}")[0] + "\n}", namespace)
    return namespace["schema"]


def test_the_schema_of_an_index(tmp_path, capsys):
    index = write_tfrecords({"image": images(9), "label": np.arange(9)}, tmp_path, shards=2, verbose=0)
    assert main(["inspect", str(tmp_path), "--check"]) == 0
    output = capsys.readouterr().out
    assert schema_of(output) == index.schema
    assert "2 files, 9 records" in output
    assert "0 bad records and files" in output


def test_code_of_files_without_an_index_reads_them(tmp_path, capsys):
    files = write_plain(tmp_path)
    assert main(["inspect", *files]) == 0
    output = capsys.readouterr().out
    assert f"{files[0]}: 20 records\n" in output
    assert "# 20 raw bytes; these fit, choose one:\n" in output
    dataset = tfrecord_dataset(tmp_path, schema_of(output), global_batch_size=8)
    assert sorted(flat(labels(dataset))) == list(range(ROWS))


def test_damage_is_named(tmp_path, capsys):
    first, second = write_plain(tmp_path)
    flip(first, os.path.getsize(first) // 20 * 7 + 30)
    cut(second, os.path.getsize(second) - 1)
    assert main(["inspect", str(tmp_path), "--check"]) == 1
    output = capsys.readouterr().out
    assert f"{first} record 7: the record does not have its checksum (CRC)\n" in output
    assert f"{second} record 19: the file is cut: 1 bytes" in output
    assert "2 bad records and files" in output


def test_a_changed_shard_is_named(tmp_path, capsys):
    write_tfrecords({"x": np.arange(9)}, tmp_path, shards=1, verbose=0)
    (shard,) = tmp_path.glob("*.tfrecord")
    flip(shard, os.path.getsize(shard) - 1)
    assert main(["inspect", str(tmp_path), "--check"]) == 1
    output = capsys.readouterr().out
    assert f"{shard}: not the file that was written, by its checksum\n" in output
    assert f"{shard} record 8: " in output


def test_a_file_that_is_none(tmp_path, capsys):
    (tmp_path / "a.tfrecord").write_text("a page of text that is no record")
    assert main(["inspect", str(tmp_path)]) == 1
    assert "A file of records must begin with the length" in capsys.readouterr().err
