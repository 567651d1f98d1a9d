"""Shares out batches over the replicas evenly, also those that TensorFlow's own split fails for.

TensorFlow gives ceil(G / R) rows of a batch of G to each of R replicas, until none are left: of 5 rows to 4 replicas 2,
2, 1 and none. Here they get 2, 1, 1 and 1. A replica without rows runs on zeros that count for nothing, and plain batch
statistics of few rows are worse than of more.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.replica import feeding, private, workers
from mirrored_keras.replica.instances import replaced_methods
from mirrored_keras.replica.rows import RULE, limits_of_shares, rows_of


@contextlib.contextmanager
def shared_out(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Lets a strategy share out datasets evenly inside the block.

    Replica r gets the rows from `limits_of_shares(G, R)[r]` on of every batch. Batches of a number of rows that is
    known and can be divided by the replicas are left to TensorFlow, which does the same then and knows the shapes.
    Sparse tensors, ragged ones and `None`, with which it fails, are shared out here. So are all datasets of several
    workers: each of them reads the global batches, and keeps its rows of them. TensorFlow would share out files, or
    batches of another size, and no longer train on the global batches of one replica.

    Args:
        strategy: The model's strategy; its `experimental_distribute_dataset` is what Keras calls with all data.

    Yields:
        Nothing.
    """
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        yield
        return
    several = private.in_multi_worker_mode(strategy)

    def wrap(distribute):
        def experimental_distribute_dataset(dataset, options=None):
            specs = tf.nest.flatten(dataset.element_spec)
            if any(isinstance(spec, tf.NoneTensorSpec) for spec in specs):
                dataset = dataset.map(feeding.stand_ins_for_none)
            if not several and all(_divides(spec, replicas) for spec in specs):
                return distribute(dataset, options)
            here = workers.replicas_here(strategy)
            return strategy.distribute_datasets_from_function(lambda _: shares_of(dataset, replicas, here), options)

        return experimental_distribute_dataset

    with replaced_methods([(strategy, "experimental_distribute_dataset", wrap)]):
        yield


def _divides(spec, replicas):
    rows = spec.shape[0] if isinstance(spec, tf.TensorSpec) and spec.shape.rank else None
    return rows is not None and rows % replicas == 0


def shares_of(dataset: tf.data.Dataset, replicas: int, here: range | None = None) -> tf.data.Dataset:
    """Returns a dataset of the shares of the replicas, one after the other.

    Args:
        dataset: Of global batches.
        replicas: R.
        here: The replicas of this process; all of them without it.

    Returns:
        An element for each replica here of each batch, with as many rows as `limits_of_shares` says.
    """
    here = range(replicas) if here is None else here
    specs = tf.nest.flatten(dataset.element_spec)
    dense = all(isinstance(spec, tf.TensorSpec) and spec.shape.rank for spec in specs)
    split = _rebatched if dense else _sliced
    in_tuple = isinstance(dataset.element_spec, tuple)

    @tf.autograph.experimental.do_not_convert
    def shares_of_batch(*batch):
        return split(batch if in_tuple else batch[0], replicas, here)

    shares = dataset.flat_map(shares_of_batch)
    count = int(dataset.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        # then TensorFlow need not ask every time whether there is a batch
        shares = shares.apply(tf.data.experimental.assert_cardinality(count))
    elif count >= 0 and len(here) < replicas:
        shares = shares.apply(tf.data.experimental.assert_cardinality(count * len(here)))
    return shares.prefetch(len(here))


def _rebatched(batch, replicas, here):
    """Cuts a batch of dense tensors up, in one operation: several cost more than the rest of sharing out."""
    leaves = tf.nest.flatten(batch)
    rows = tf.stack([tf.shape(leaf, tf.int64)[0] for leaf in leaves])
    checks = [tf.debugging.Assert(tf.reduce_all(rows == rows[0]), [RULE, rows], summarize=-1)] if leaves[1:] else []
    with tf.control_dependencies(checks):
        limits = tf.stack(limits_of_shares(rows[0], replicas))
    specs = [tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype) for leaf in leaves]
    # Public, but without a function of its own: the sizes of the pieces as a tensor.
    variant = tf.raw_ops.RebatchDatasetV2(
        input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.from_tensors(tuple(leaves))),
        batch_sizes=limits[1:] - limits[:-1],
        drop_remainder=False,
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
    )
    pieces = tf.data.experimental.from_variant(variant, tf.nest.pack_sequence_as(batch, specs))
    # of no rows it makes pieces without end
    return pieces.skip(here.start).take(len(here)) if here.start else pieces.take(len(here))


def _sliced(batch, replicas, here):
    def limits(leaf):
        return limits_of_shares(tf.convert_to_tensor(rows_of(leaf)), replicas)

    def part(replica):
        return keras.tree.map_structure(lambda leaf: rows_between(leaf, *limits(leaf)[replica : replica + 2]), batch)

    dataset = tf.data.Dataset.from_tensors(part(here[0]))
    for replica in here[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(part(replica)))
    return dataset


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
