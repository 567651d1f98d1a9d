"""Shares out batches over the replicas where TensorFlow's own split fails: sparse, some ragged, `None`, workers."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.replica import feeding, private, workers
from mirrored_keras.replica.instances import replaced_methods
from mirrored_keras.replica.rows import first_leaf, rows_of


@contextlib.contextmanager
def shared_out(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Lets a strategy share out, inside the block, also datasets that it cannot share out by itself.

    These have sparse tensors, ragged vectors or `None` in them. Of every batch replica r gets the rows r * s to
    (r + 1) * s, s = ceil(G / R), the last replicas fewer or none. So it is with all datasets of several workers: each
    of them reads the global batches, and keeps its rows of them. TensorFlow would share out files, or batches of
    another size, and no longer train on the global batches of one replica.

    Args:
        strategy: The model's strategy; its `experimental_distribute_dataset` is what Keras calls with all data.

    Yields:
        Nothing.
    """
    if strategy.num_replicas_in_sync == 1:
        yield
        return
    several = private.in_multi_worker_mode(strategy)

    def wrap(distribute):
        def experimental_distribute_dataset(dataset, options=None):
            specs = tf.nest.flatten(dataset.element_spec)
            if any(isinstance(spec, tf.NoneTensorSpec) for spec in specs):
                dataset = dataset.map(feeding.stand_ins_for_none)
            if several or any(map(_fails_without_rows, specs)):
                return strategy.distribute_datasets_from_function(lambda _: _shared(strategy, dataset))
            return distribute(dataset, options)

        return experimental_distribute_dataset

    with replaced_methods([(strategy, "experimental_distribute_dataset", wrap)]):
        yield


def _shared(strategy, dataset):
    shared = dataset.flat_map(_shares(strategy))
    count = dataset.cardinality()
    if count == tf.data.UNKNOWN_CARDINALITY:
        return shared
    # with an endless dataset workers need not ask each other before every step whether there is data left
    parts = len(workers.replicas_here(strategy))
    return shared.apply(tf.data.experimental.assert_cardinality(count if count < 0 else count * parts))


def _shares(strategy):
    replicas = strategy.num_replicas_in_sync
    here = workers.replicas_here(strategy)

    def shares(*batch):
        batch = batch if len(batch) > 1 else batch[0]
        rows = rows_of(first_leaf(batch))
        share = -(-rows // replicas)
        starts = [tf.minimum(replica * share, rows) for replica in (*here, here[-1] + 1)]
        parts = [_rows_between(batch, *limits) for limits in itertools.pairwise(starts)]
        dataset = tf.data.Dataset.from_tensors(parts[0])
        for part in parts[1:]:
            dataset = dataset.concatenate(tf.data.Dataset.from_tensors(part))
        return dataset

    return shares


def _fails_without_rows(spec):
    # where a replica has no rows TensorFlow puts numbers in for a ragged tensor's vectors
    vectors = isinstance(spec, tf.RaggedTensorSpec) and spec.shape.rank > spec.ragged_rank + 1
    return vectors or isinstance(spec, tf.SparseTensorSpec)


def _rows_between(batch, start, stop):
    return keras.tree.map_structure(lambda leaf: rows_between(leaf, start, stop), batch)


def rows_between(leaf: Any, start: tf.Tensor, stop: tf.Tensor) -> Any:
    """Returns some of the rows of a tensor.

    Args:
        leaf: A dense, ragged or sparse tensor.
        start: The first row.
        stop: The row after the last one.

    Returns:
        A tensor of the same kind, which knows as much of its shape.
    """
    if not isinstance(leaf, tf.SparseTensor):
        return leaf[start:stop]
    begin = tf.concat([[start], tf.zeros([leaf.shape.rank - 1], tf.int32)], 0)
    size = tf.concat([[stop - start], tf.cast(leaf.dense_shape[1:], tf.int32)], 0)
    part = tf.sparse.slice(leaf, tf.cast(begin, tf.int64), tf.cast(size, tf.int64))
    known = [part.dense_shape[i] if n is None else n for i, n in enumerate([None, *leaf.shape[1:]])]
    return tf.SparseTensor(part.indices, part.values, tf.stack([tf.cast(n, tf.int64) for n in known]))
