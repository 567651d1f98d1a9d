"""Counts the rows of a batch: the first dimension of its first tensor, which all its tensors share."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.errors import BatchError, message

RULE = "Features, targets and weights of a batch must have the same number of rows."


def rows_of(value: Any) -> tf.Tensor | int:
    """Returns the number of rows of a tensor: an int when it is known statically, else a scalar int32.

    Args:
        value: A dense, ragged or sparse tensor; a scalar counts as one row.

    Returns:
        B.
    """
    if isinstance(value, tf.RaggedTensor):
        return tf.cast(value.nrows(), tf.int32)
    if isinstance(value, tf.SparseTensor):
        return tf.cast(value.dense_shape[0], tf.int32)
    if not hasattr(value, "shape"):
        value = tf.convert_to_tensor(value)
    if len(value.shape) == 0:
        return 1
    static = value.shape[0]
    return int(static) if static is not None else tf.shape(value)[0]


def limits_of_shares(rows: Any, replicas: int) -> list[Any]:
    """Returns where the rows of each replica begin, and where the last one's end.

    Of G rows every one of R replicas gets G // R, and the first G % R of them one more: two shares differ by at most
    one row, and none is empty unless there are fewer rows than replicas.

    Args:
        rows: G, an integer or a scalar tensor.
        replicas: R.

    Returns:
        R + 1 numbers like `rows`; replica r has the rows from the r-th to the one before the next.
    """
    share, more = rows // replicas, rows % replicas
    smaller = tf.minimum if tf.is_tensor(rows) else min
    return [share * replica + smaller(more, replica) for replica in range(replicas + 1)]


def first_leaf(data: Any) -> Any:
    """Returns the first tensor of a structure, by whose first dimension rows are counted.

    Args:
        data: A tensor or a structure of tensors; `None` parts are skipped.

    Returns:
        The tensor.

    Raises:
        ValueError: There is none.
    """
    for leaf in keras.tree.flatten(data):
        if leaf is not None:
            return leaf
    raise ValueError("A batch needs at least one tensor to count its rows by. Received: no tensor")


def counts_on_replicas(strategy: tf.distribute.Strategy, data: Any) -> list[list[Any]]:
    """Returns the rows of every tensor of a batch on every replica of this machine.

    Args:
        strategy: The strategy.
        data: The data of all replicas, in any structure; `None` and numbers per batch are left out.

    Returns:
        For each replica one count per tensor, in flattened order: integers or scalar tensors.
    """
    local = [strategy.experimental_local_results(leaf) for leaf in keras.tree.flatten(data) if leaf is not None]
    with_rows = [parts for parts in local if getattr(parts[0], "shape", ())]
    return [[rows_of(part) for part in parts] for parts in zip(*with_rows, strict=True)]


def are_alike(counts: Sequence[Sequence[Any]]) -> tf.Tensor | bool:
    """Returns whether all tensors have the same number of rows on each replica.

    Args:
        counts: From `counts_on_replicas`.

    Returns:
        A bool where that is known beforehand, else a scalar tensor.
    """
    flat = [count for of_replica in counts for count in of_replica]
    if len(flat) == len(counts):
        return True
    if all(isinstance(count, int) for count in flat):
        return all(len(set(of_replica)) == 1 for of_replica in counts)
    table = tf.stack([tf.stack(of_replica) for of_replica in counts])
    return tf.reduce_all(tf.equal(table, table[:, :1]))


def check_alike(strategy: tf.distribute.Strategy, data: Any, go: tf.Tensor) -> tf.Tensor:
    """Returns `go` once it is known that all tensors of a batch have the same number of rows.

    Each tensor of a batch is shared out by itself, so a difference shows on some replica.

    Args:
        strategy: The strategy.
        data: The data of all replicas.
        go: A number that a step waits for.

    Returns:
        A tensor like `go`; reading it is an error, named by `difference_named`, where rows differ.

    Raises:
        BatchError: They differ, and that is known beforehand.
    """
    counts = counts_on_replicas(strategy, data)
    alike = are_alike(counts)
    if alike is True:
        return go
    if alike is False:
        raise _difference([sum(of_all) for of_all in zip(*counts, strict=True)])
    totals = tf.add_n([tf.stack(of_replica) for of_replica in counts])
    with tf.control_dependencies([tf.debugging.Assert(alike, [RULE, totals], summarize=-1)]):
        return tf.identity(go)


@contextlib.contextmanager
def difference_named() -> Iterator[None]:
    """Turns the error of `check_alike` in a graph into a `BatchError`.

    Yields:
        Nothing.

    Raises:
        BatchError: Rows differed.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = re.search(re.escape(RULE) + r"\W+([\d ]+)", str(error))
        if found is None:
            raise
        raise _difference([int(count) for count in found[1].split()]) from None


def _difference(rows):
    return BatchError(
        message(
            RULE,
            f"rows={rows} (x, y, sample_weight flattened)",
            "tf.data.Dataset.zip((features, targets)).batch(64)   # zip single rows, then batch",
        )
    )
