"""Who gets how many rows: shares differ by at most one row, whatever the data are, and add up to the batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from mirrored_keras import BatchError, DistributedModel, GlobalBatch
from mirrored_keras.data import rows_of_batches, rows_per_replica
from mirrored_keras.replica.rows import limits_of_shares
from mirrored_keras.replica.sharing_out import shares_of

pytestmark = pytest.mark.filterwarnings("ignore:`shuffle=True` was passed", "ignore:Your input ran out of data")

X, Y = np.arange(22, dtype=np.float32).reshape(11, 2), np.ones((11, 1), np.float32)
BATCH = 5
SHARES = {
    2: [[3, 2], [3, 2], [1, 0]],
    3: [[2, 2, 1], [2, 2, 1], [1, 0, 0]],
    4: [[2, 1, 1, 1], [2, 1, 1, 1], [1, 0, 0, 0]],
}


class Counting(DistributedModel):
    """Notes the rows that every replica gets, in steps that run eagerly."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.dense.build((None, 2))
        self.built = True
        self.seen = []
        self.compile(keras.optimizers.SGD(1e-3), "mse", run_eagerly=True)

    def call(self, x):
        if tf.executing_eagerly() and tf.is_tensor(x):  # and not while Keras asks for shapes
            replica = int(tf.distribute.get_replica_context().replica_id_in_sync_group)
            self.seen.append((replica, int(GlobalBatch.current(x).rows)))
        return self.dense(x)

    def rows(self, replicas):
        """Returns the rows of the replicas, batch by batch, and forgets them."""
        counts = [[rows for number, rows in self.seen if number == replica] for replica in range(replicas)]
        self.seen = []
        return [list(batch) for batch in zip(*counts, strict=True)]


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, number):
        return X[number * BATCH :][:BATCH], Y[number * BATCH :][:BATCH]


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)


def batches():
    return (Batches()[number] for number in range(3))


@pytest.mark.parametrize("replicas", SHARES)
def test_every_form_of_data_is_shared_out_evenly(make_strategy, replicas):
    with make_strategy(replicas).scope():
        model = Counting()
    forms = [(X, Y), (dataset(),), (batches(),), (Batches(),)]
    for data in forms:
        options = {"batch_size": BATCH} if len(data) == 2 else {}
        model.fit(*data, shuffle=False, verbose=0, **options)
        assert model.rows(replicas) == SHARES[replicas], data
    model.evaluate(dataset(), verbose=0)
    assert model.rows(replicas) == SHARES[replicas]
    predicted = model.predict(X, batch_size=BATCH, verbose=0)
    assert model.rows(replicas) == SHARES[replicas]
    kernel, bias = model.get_weights()
    np.testing.assert_allclose(predicted, X @ kernel + bias, rtol=1e-6)
    model.train_on_batch(X[:5], Y[:5])
    assert model.rows(replicas) == SHARES[replicas][:1]


def elements(rows):
    """Returns rows of every kind of tensor, and the number of the first column of each."""
    ragged = tf.RaggedTensor.from_row_lengths(tf.range(rows), [1] * rows)
    return {"dense": tf.range(rows), "ragged": ragged, "sparse": tf.sparse.from_dense(tf.ones((rows, 2)))}


@pytest.mark.parametrize(("replicas", "kinds"), [(2, ["dense"]), (7, ["dense"]), (3, ["dense", "ragged", "sparse"])])
def test_all_numbers_of_rows(replicas, kinds):
    for rows in (0, 1, 5, 8, 13) if len(kinds) == 1 else (1, 5):
        expected = [rows // replicas + (replica < rows % replicas) for replica in range(replicas)]
        assert np.diff(limits_of_shares(rows, replicas)).tolist() == expected
        batch = tf.data.Dataset.from_tensors({kind: elements(rows)[kind] for kind in kinds})
        shares = list(shares_of(batch.concatenate(batch), replicas))
        assert [len(share["dense"]) for share in shares] == 2 * expected
        assert np.concatenate([share["dense"] for share in shares]).tolist() == 2 * list(range(rows))
        for share in shares if len(kinds) > 1 else ():
            assert share["ragged"].values.numpy().tolist() == share["dense"].numpy().tolist()
            assert share["sparse"].dense_shape.numpy().tolist() == [len(share["dense"]), 2]


def test_an_element_keeps_its_structure_and_an_endless_dataset_its_length():
    data = tf.data.Dataset.from_tensors((tf.zeros((5, 2)),)).repeat()
    shares = shares_of(data, 2)
    assert shares.element_spec == (tf.TensorSpec((None, 2)),)
    assert int(shares.cardinality()) == tf.data.INFINITE_CARDINALITY
    assert [len(x) for (x,) in shares.take(4)] == [3, 2, 3, 2]


@pytest.mark.parametrize("replicas", SHARES)
def test_reports(make_strategy, replicas):
    strategy = make_strategy(replicas)
    assert rows_per_replica(5, strategy) == SHARES[replicas][0]
    assert rows_of_batches(dataset(), strategy) == SHARES[replicas]
    assert rows_of_batches(dataset().repeat(), strategy, batches=2) == SHARES[replicas][:2]
    distributed = strategy.experimental_distribute_dataset(dataset())  # by TensorFlow, which rounds up
    assert rows_of_batches(distributed, strategy)[0] == {2: [3, 2], 3: [2, 2, 1], 4: [2, 2, 1, 0]}[replicas]


def test_reports_of_what_is_no_batch(make_strategy):
    strategy = make_strategy(2)
    with pytest.raises(BatchError, match="A dataset without end is read in part"):
        rows_of_batches(dataset().repeat(), strategy)
    with pytest.raises(BatchError, match="The elements of a dataset must be batches"):
        rows_of_batches(tf.data.Dataset.range(3), strategy)
    with pytest.raises(BatchError, match="Received: global_batch=0"):
        rows_per_replica(0, strategy)
