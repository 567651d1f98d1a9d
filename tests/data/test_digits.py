"""The shipped digits are the real ones, each once, split by a rule, and come as the promised batches."""

import pathlib

import numpy as np
import pytest
import sklearn.datasets
import tensorflow as tf

from data import write_digits
from mirrored_keras.data import digits_dataset
from mirrored_keras.data.digits import DIRECTORY, ROWS

SPLITS = ("train", "test")


def records(paths):
    """Reads shards without the code under test: source row, label and pixels of every record."""
    for record in tf.data.TFRecordDataset([str(path) for path in paths]).as_numpy_iterator():
        feature = tf.train.Example.FromString(record).features.feature
        row, label = feature["source_row"].int64_list.value[0], feature["label"].int64_list.value[0]
        yield row, label, np.frombuffer(feature["image"].bytes_list.value[0], np.uint8)


def shards(split, directory=DIRECTORY):
    return sorted(pathlib.Path(directory).glob(f"{split}-*.tfrecord"))


def rows_of(split):
    return [row for row, _, _ in records(shards(split))]


def collect(split, **options):
    """Returns all images and labels of a split, joined."""
    images, labels = zip(*digits_dataset(split, **options).as_numpy_iterator(), strict=True)
    return np.concatenate(images), np.concatenate(labels)


@pytest.fixture(scope="module")
def source():
    return sklearn.datasets.load_digits()


def test_every_record_is_the_row_of_the_source_that_it_names(source):
    for split in SPLITS:
        for row, label, pixels in records(shards(split)):
            assert label == source.target[row]
            np.testing.assert_array_equal(pixels.reshape(8, 8), source.images[row])


def test_every_row_of_the_source_is_in_one_split_once(source):
    rows = rows_of("train") + rows_of("test")
    assert sorted(rows) == list(range(len(source.target)))


def test_no_held_out_picture_is_also_a_training_picture():
    pictures = {split: {(label, pixels.tobytes()) for _, label, pixels in records(shards(split))} for split in SPLITS}
    assert not pictures["train"] & pictures["test"]


def test_a_fifth_of_each_digit_is_held_out(source):
    held_out = np.bincount(source.target[rows_of("test")])
    total = np.bincount(source.target)
    np.testing.assert_array_equal(held_out, -(-total // 5))


def test_the_script_still_writes_the_shipped_records(tmp_path):
    write_digits.write(tmp_path)
    for split in SPLITS:
        written, shipped = shards(split, tmp_path), shards(split)
        assert [path.name for path in written] == [path.name for path in shipped]
        for ours, theirs in zip(records(written), records(shipped), strict=True):
            assert ours[:2] == theirs[:2]
            np.testing.assert_array_equal(ours[2], theirs[2])


def test_source_and_licence_are_named_and_all_is_small():
    text = (DIRECTORY / "SOURCE.txt").read_text(encoding="utf-8")
    assert "10.24432/C50P49" in text
    assert "CC BY 4.0" in text
    assert sum(path.stat().st_size for path in DIRECTORY.iterdir()) < 2**20


@pytest.mark.parametrize("split", SPLITS)
def test_batches_hold_every_row_and_the_last_one_is_short(split, source):
    images, labels = collect(split, global_batch_size=100)
    expected = rows_of(split)
    np.testing.assert_array_equal(labels, source.target[expected])
    np.testing.assert_array_equal(images[..., 0] * 16, source.images[expected])
    sizes = [len(labels) for _, labels in digits_dataset(split, global_batch_size=100)]
    assert set(sizes[:-1]) == {100}
    assert sizes[-1] == ROWS[split] % 100 != 0


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("seed", [None, 3])
def test_shapes_types_and_length_are_known(split, seed):
    dataset = digits_dataset(split, global_batch_size=64, shuffle_seed=seed)
    image, label = dataset.element_spec
    assert (image.shape.as_list(), image.dtype) == ([None, 8, 8, 1], tf.float32)
    assert (label.shape.as_list(), label.dtype) == ([None], tf.int32)
    assert int(dataset.cardinality()) == -(-ROWS[split] // 64)


def test_pixels_are_in_0_to_1():
    images, _ = collect("train", global_batch_size=500)
    assert images.min() == 0
    assert images.max() == 1


def test_a_seed_fixes_the_order_of_every_pass():
    dataset = digits_dataset("train", global_batch_size=200, shuffle_seed=5)
    passes = [np.concatenate([labels for _, labels in dataset.as_numpy_iterator()]) for _ in range(2)]
    again = collect("train", global_batch_size=200, shuffle_seed=5)[1]
    np.testing.assert_array_equal(passes[0], passes[1])
    np.testing.assert_array_equal(passes[0], again)


def test_shuffling_changes_the_order_and_loses_nothing():
    in_order = collect("train", global_batch_size=200)[0]
    first = collect("train", global_batch_size=200, shuffle_seed=5)[0]
    second = collect("train", global_batch_size=200, shuffle_seed=6)[0]
    assert not np.array_equal(first, in_order)
    assert not np.array_equal(first, second)

    def contents(images):
        return sorted(image.tobytes() for image in images)

    assert contents(first) == contents(second) == contents(in_order)


def test_replicas_get_the_batches_of_one_replica_in_order(make_strategy):
    dataset = digits_dataset("train", global_batch_size=100, shuffle_seed=1)
    strategy = make_strategy(3)
    for (_, labels), (_, parts) in zip(dataset, strategy.experimental_distribute_dataset(dataset), strict=True):
        joined = np.concatenate([part.numpy() for part in strategy.experimental_local_results(parts)])
        np.testing.assert_array_equal(joined, labels.numpy())


def test_another_split_is_refused():
    with pytest.raises(ValueError) as caught:
        digits_dataset("validation", global_batch_size=10)
    assert str(caught.value) == (
        "`split` must name a part of the digits.\n"
        "Received: split='validation'\n"
        'What to do: digits_dataset("train", global_batch_size=100) or digits_dataset("test", global_batch_size=100)'
    )


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "8", None])
def test_a_batch_size_that_is_no_positive_integer_is_refused(size):
    with pytest.raises(ValueError) as caught:
        digits_dataset("test", global_batch_size=size)
    assert str(caught.value) == (
        "`global_batch_size` must be a positive integer: the rows of a batch over all replicas together.\n"
        f"Received: global_batch_size={size!r}\n"
        "What to do: digits_dataset('test', global_batch_size=100)"
    )
