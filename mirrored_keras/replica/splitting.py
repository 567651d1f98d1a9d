"""Splits one batch of arrays over the replicas, as `sharing_out` splits the batches of a dataset."""

from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.errors import BatchError, message
from mirrored_keras.replica.rows import limits_of_shares


def split_batch(strategy: tf.distribute.Strategy, data: Any) -> Any:
    """Returns a batch as per-replica values: G / R rows each, in order, the first ones one more where that is needed.

    Args:
        strategy: The strategy to split for.
        data: A structure of arrays or tensors (dense, ragged, sparse), all with G rows; `None` stays.

    Returns:
        The structure with one value per replica; unchanged for one replica or when split already.

    Raises:
        BatchError: Parts of the batch have different numbers of rows.
    """
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
    if strategy.num_replicas_in_sync == 1 or any(isinstance(v, tf.distribute.DistributedValues) for v in leaves):
        return data
    data = keras.tree.map_structure(_as_tensor, data)
    counts = [_rows(leaf) for leaf in keras.tree.flatten(data) if leaf is not None]
    if len(set(counts)) != 1:
        raise BatchError(
            message(
                "All arrays of a batch must have the same number of rows.",
                f"rows={counts} (x, y, sample_weight flattened)",
                "model.train_on_batch(x[:n], y[:n])",
            )
        )
    limits = limits_of_shares(counts[0], strategy.num_replicas_in_sync)

    def value_fn(context):
        start, stop = limits[context.replica_id_in_sync_group : context.replica_id_in_sync_group + 2]
        return keras.tree.map_structure(lambda leaf: _slice(leaf, start, stop), data)

    return strategy.experimental_distribute_values_from_function(value_fn)


def _as_tensor(leaf):
    if leaf is None or isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
        return leaf
    return tf.convert_to_tensor(leaf)


def _rows(leaf):
    return int(leaf.shape[0]) if leaf.shape.rank else 1


def _slice(leaf, start, stop):
    if leaf is None:
        return None
    if isinstance(leaf, tf.SparseTensor):
        size = [stop - start, *leaf.dense_shape.numpy()[1:]]
        return tf.sparse.slice(leaf, [start] + [0] * (len(size) - 1), size)
    # a slice along the first dimension may share the caller's memory, which a kernel may write to
    return leaf[start:stop] if isinstance(leaf, tf.RaggedTensor) else tf.identity(leaf[start:stop])
