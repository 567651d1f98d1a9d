"""Every row once per pass: on replicas, on workers, shuffled or not, in every process in the same order."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from data.record_sets import ROWS, SCHEMA, example, flat, images, labels, write_file, write_plain
from mirrored_keras import DistributedModel
from mirrored_keras.data import Feature, global_batch_size, per_replica_batch_size, tfrecord_dataset, write_tfrecords

pytestmark = pytest.mark.table(every=3)

SHUFFLES = [False, True, 7]
LARGE_ROW = 1 << 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows")
    write_tfrecords({"image": images(), "label": np.arange(ROWS)}, path, shards=3, verbose=0)
    return path


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large")
    records = [example(image=bytes([row]) * LARGE_ROW, label=row) for row in range(9)]
    write_file(path / "a.tfrecord", records[:5])
    write_file(path / "b.tfrecord", records[5:])
    return path


def parts_of(strategy, batch):
    return [part.numpy() for part in strategy.experimental_local_results(batch["label"])]


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_replicas_get_the_rows_of_the_global_batches(folder, make_strategy, replicas, shuffle):
    strategy = make_strategy(replicas)
    options = {"global_batch_size": 9, "shuffle": shuffle, "seed": 4}
    expected = labels(tfrecord_dataset(folder, **options))
    distributed = strategy.experimental_distribute_dataset(tfrecord_dataset(folder, **options))
    shares = [np.concatenate(parts_of(strategy, batch)).tolist() for batch in distributed]
    assert shares == expected
    assert sorted(flat(shares)) == list(range(ROWS))


@pytest.mark.parametrize(
    ("workers", "shuffle", "tail"),
    [(2, False, "keep"), (2, True, "pad"), (3, 7, "keep"), (3, True, "drop"), (3, False, "pad"), (2, 7, "drop")],
)
def test_shards_of_workers_make_up_the_global_batches(folder, workers, shuffle, tail):
    options = {"global_batch_size": 6, "shuffle": shuffle, "tail": tail}
    expected = labels(tfrecord_dataset(folder, **options))
    shares = [labels(tfrecord_dataset(folder, shard=(worker, workers), **options)) for worker in range(workers)]
    for number, batch in enumerate(expected):
        together = [share[number] for share in shares]
        assert sorted(flat(together)) == sorted(batch)
        assert all(batch[worker::workers] == part for worker, part in enumerate(together))


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_input_contexts_share_by_row(folder, shuffle):
    contexts = [tf.distribute.InputContext(2, pipeline, num_replicas_in_sync=4) for pipeline in range(2)]
    options = {"global_batch_size": 8, "shuffle": shuffle}
    shares = [labels(tfrecord_dataset(folder, input_context=context, **options)) for context in contexts]
    assert {len(batch) for share in shares for batch in share} == {2}
    assert sorted(flat(flat(shares))) == list(range(ROWS))


def test_a_strategy_passes_its_context(folder, make_strategy):
    strategy = make_strategy(2)
    distributed = strategy.distribute_datasets_from_function(
        lambda context: tfrecord_dataset(folder, global_batch_size=8, input_context=context)
    )
    rows = [part.tolist() for batch in distributed for part in parts_of(strategy, batch)]
    assert rows == [list(range(first, first + 4)) for first in range(0, ROWS, 4)]


@pytest.mark.parametrize("workers", [2, 3])
def test_what_several_workers_make_of_it(folder, workers):
    """What `MultiWorkerMirroredStrategy` does: it asks for the policy, and has TensorFlow rewrite the graph."""
    shares = []
    for worker in range(workers):
        dataset = tfrecord_dataset(folder, global_batch_size=5, shuffle=True)
        policy = dataset.options().experimental_distribute.auto_shard_policy
        assert policy == tf.data.experimental.AutoShardPolicy.DATA
        variant = tf.raw_ops.AutoShardDataset(
            input_dataset=tf.data.experimental.to_variant(dataset),
            num_workers=workers,
            index=worker,
            output_types=[tf.uint8, tf.int64],
            output_shapes=[(None, 4, 5), (None,)],
            auto_shard_policy=policy.value,
        )
        shares += labels(tf.data.experimental.from_variant(variant, dataset.element_spec))
    assert sorted(flat(shares)) == list(range(ROWS))


@pytest.mark.parametrize("shuffle", [True, 7])
def test_every_pass_has_an_order_of_its_own(folder, shuffle):
    dataset = tfrecord_dataset(folder, global_batch_size=9, shuffle=shuffle)
    passes = [flat(labels(dataset)) for _ in range(3)]
    repeated = flat(labels(tfrecord_dataset(folder, global_batch_size=9, shuffle=shuffle, repeat=3)))
    assert repeated == flat(passes)
    assert all(sorted(order) == list(range(ROWS)) for order in passes)
    assert len({tuple(order) for order in passes}) == 3
    other = flat(labels(tfrecord_dataset(folder, global_batch_size=9, shuffle=shuffle, seed=1)))
    assert other not in passes


def test_a_new_process_has_the_same_orders(folder):
    code = (
        "import sys, json; from mirrored_keras.data import tfrecord_dataset\n"
        "import tensorflow as tf; tf.random.set_seed(20)\n"
        "data = tfrecord_dataset(sys.argv[1], global_batch_size=9, shuffle=True, seed=3, repeat=2).skip(7)\n"
        "print(json.dumps([batch['label'].numpy().tolist() for batch in data]))"
    )
    result = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    here = labels(tfrecord_dataset(folder, global_batch_size=9, shuffle=True, seed=3, repeat=2))
    assert json.loads(result.stdout.splitlines()[-1]) == here[7:]


def test_two_processes_read_every_row_once(folder):
    """Two workers, each a process of its own, that know nothing of one another but the number."""
    code = (
        "import sys, json; from mirrored_keras.data import tfrecord_dataset\n"
        "share = {'shard': (int(sys.argv[2]), 2), 'global_batch_size': 8}\n"
        "data = tfrecord_dataset(sys.argv[1], shuffle=True, seed=3, repeat=2, **share)\n"
        "print(json.dumps([batch['label'].numpy().tolist() for batch in data]))"
    )
    command = [sys.executable, "-c", code, str(folder)]
    workers = [subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, text=True) for i in range(2)]
    shares = [json.loads(worker.communicate()[0].splitlines()[-1]) for worker in workers]
    together = [sorted([*one, *other]) for one, other in zip(*shares, strict=True)]
    for rows in (together[:5], together[5:]):
        assert [len(batch) for batch in rows] == [8] * 5
        assert sorted(flat(rows)) == list(range(ROWS))


@pytest.mark.parametrize("repeat", [False, 2, True])
def test_batches_stay_within_a_pass_and_the_length_is_known(folder, repeat):
    dataset = tfrecord_dataset(folder, global_batch_size=16, repeat=repeat)
    passes = {False: 1, 2: 2, True: 3}[repeat]
    assert int(dataset.cardinality()) == (tf.data.INFINITE_CARDINALITY if repeat is True else 3 * passes)
    assert [len(batch) for batch in labels(dataset.take(3 * passes))] == [16, 16, 8] * passes


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("repeat", [False, 2])
def test_large_records_come_once_each(large, shuffle, repeat):
    schema = {"image": Feature("uint8", (LARGE_ROW,)), "label": SCHEMA["label"]}
    orders = flat(labels(tfrecord_dataset(large, schema, global_batch_size=4, shuffle=shuffle, repeat=repeat)))
    assert sorted(orders) == sorted([*range(9)] * (repeat or 1))
    assert (orders[:9] == [*range(9)]) == (shuffle is False)
    (batch,) = tfrecord_dataset(large, schema, global_batch_size=9, shuffle=shuffle)
    np.testing.assert_array_equal(batch["image"][:, 5], batch["label"])


def test_a_part_of_the_shards_of_an_index(folder):
    files = sorted(map(str, folder.glob("*.tfrecord")))
    assert sorted(flat(labels(tfrecord_dataset(files[1:], global_batch_size=9)))) == [n for n in range(ROWS) if n % 3]


def make_model():
    inputs = keras.Input((4, 5))
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    model = DistributedModel(inputs, keras.layers.Dense(3)(keras.layers.Dense(4, activation="tanh")(x)))
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize("tail", ["keep", "pad"])
def test_training_equals_training_from_arrays(tmp_path, make_strategy, tail):
    x, y, weights = images(), np.arange(ROWS) % 3, np.linspace(0.5, 2, ROWS, dtype=np.float32)
    write_tfrecords((x, y, weights), tmp_path, shards=3, verbose=0)
    options = {"inputs": "x", "targets": "y", "sample_weight": "sample_weight", "tail": tail}
    dataset = tfrecord_dataset(tmp_path, global_batch_size=12, **options)
    if tail == "pad":
        x, y, weights = np.concatenate([x, x[:8]]), np.concatenate([y, y[:8]]), np.pad(weights, (0, 8))
    losses = []
    for replicas, data, more in ((1, (x, y), {"sample_weight": weights, "batch_size": 12}), (3, (dataset,), {})):
        keras.utils.set_random_seed(3)
        with make_strategy(replicas).scope():
            model = make_model()
        losses.append(model.fit(*data, epochs=2, shuffle=False, verbose=0, **more).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_shuffled_training_is_that_of_one_replica(folder, make_strategy):
    def losses(replicas):
        keras.utils.set_random_seed(3)
        with make_strategy(replicas).scope():
            model = make_model()
        options = {"inputs": "image", "targets": "label", "map": lambda x, y: (x, y % 3)}
        data = tfrecord_dataset(folder, global_batch_size=9, shuffle=True, seed=2, **options)
        return model.fit(data, epochs=3, verbose=0, shuffle=False).history["loss"]

    np.testing.assert_allclose(losses(1), losses(3), rtol=1e-6)


def test_batch_sizes(make_strategy):
    strategy = make_strategy(3)
    assert global_batch_size(8, strategy) == 24
    assert per_replica_batch_size(24, strategy) == 8
    assert per_replica_batch_size(25, strategy) == 9


def test_plain_files_are_read_one_after_the_other(tmp_path):
    write_plain(tmp_path)
    assert flat(labels(tfrecord_dataset(tmp_path, SCHEMA, global_batch_size=7)))[:20] == list(range(0, ROWS, 2))
