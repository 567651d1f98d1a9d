"""The global batches of a check, as NumPy arrays, and whether a dataset gives the same ones again."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras.errors import BatchError, message
from mirrored_keras.parity import places
from mirrored_keras.parity.findings import Finding
from mirrored_keras.parity.runs import strategy_of

Data = Iterable[Any] | Callable[[], Iterable[Any]]


def draw(data: Data, steps: int, *, seed: int, replicas: int | None = None) -> list[tuple[Any, ...]]:
    """Returns the first batches of a dataset.

    Args:
        data: A dataset of global batches, a list of tuples, or a function that makes one.
        steps: How many; a dataset that ends before starts again.
        seed: Global seed that is set before.
        replicas: Makes the dataset in the scope of so many replicas; `None` for no strategy.

    Returns:
        Tuples of NumPy arrays, nested or not.

    Raises:
        BatchError: There are no batches, or they hold something else than dense arrays.
    """
    keras.utils.set_random_seed(seed)
    strategy = strategy_of(replicas) or tf.distribute.get_strategy()
    with strategy.scope():
        made = data() if callable(data) else data
        found: list[tuple[Any, ...]] = []
        while len(found) < steps:
            before = len(found)
            found.extend(_batch(element) for element in itertools.islice(iter(made), steps - before))
            if len(found) == before:
                raise BatchError(_message("a dataset without batches"))
    return found


def _batch(element):
    element = element if isinstance(element, tuple) else (element,)
    while element and element[-1] is None:
        element = element[:-1]
    batch = keras.tree.map_structure(_array, element)
    rows = {len(array) if array.ndim else -1 for array in keras.tree.flatten(batch)}
    if len(rows) != 1 or -1 in rows:
        raise BatchError(_message(f"arrays of {sorted(rows)} rows in one batch"))
    return batch


def _array(leaf):
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)) or leaf is None:
        raise BatchError(_message(type(leaf).__name__))
    array = np.array(leaf)
    if array.dtype == object and not isinstance(leaf, tf.Tensor):
        raise BatchError(_message(f"an array of {array.dtype}"))
    return array


def _message(received):
    return message(
        "The data of a check are global batches: tuples `(x, y)` or `(x, y, sample_weight)` of dense arrays.",
        received,
        "def make_dataset():\n    return tf.data.Dataset.from_tensor_slices((x, y)).batch(64)",
    )


def data_findings(data: Data, batches: list[tuple[Any, ...]], *, seed: int, replicas: int) -> list[Finding]:
    """Draws the batches of a dataset once more, and once in the scope of several replicas, and compares them.

    Args:
        data: What `draw` took.
        batches: What it returned.
        seed: What it was given.
        replicas: The number of replicas to try.

    Returns:
        At most one finding.
    """
    if not callable(data) and not isinstance(data, tf.data.Dataset):
        return []
    place = places.of(data) if callable(data) and not isinstance(data, tf.data.Dataset) else None
    again = draw(data, len(batches), seed=seed)
    step = first_that_differs(batches, again)
    if step is not None:
        same_rows = _same_rows(batches, again)
        kind = "the same rows in another order" if same_rows else "other rows"
        fix = "dataset.shuffle(rows, seed=1, reshuffle_each_iteration=False)" if same_rows else _SEEDED
        evidence = f"two draws with one seed: batch {step + 1} has {kind}"
        return [Finding("data-differs-between-runs", evidence, fix, place)]
    if not callable(data) or isinstance(data, tf.data.Dataset):
        return []
    try:
        scoped = draw(data, len(batches), seed=seed, replicas=replicas)
    except Exception:  # a function that cannot run in a scope need not
        return []
    step = first_that_differs(batches, scoped)
    if step is None:
        return []
    counts = [len(keras.tree.flatten(each[step])[0]) for each in (batches, scoped)]
    evidence = f"in the scope of {replicas} replicas batch {step + 1} has {counts[1]} rows, not {counts[0]}"
    fix = "dataset.batch(global_batch_size)   # the same number of rows for any number of replicas"
    return [Finding("data-depends-on-replicas", evidence, fix, place)]


_SEEDED = "np.random.default_rng(1), and seeds for all else that draws or reads in any order"


def first_that_differs(one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> int | None:
    """Returns the number of the first batch that is not the same, `None` if all are.

    Args:
        one: Batches.
        other: As many.

    Returns:
        A number from 0 on.
    """
    for step, pair in enumerate(zip(one, other, strict=True)):
        flat = [keras.tree.flatten(batch) for batch in pair]
        if len(flat[0]) != len(flat[1]) or not all(_same(a, b) for a, b in zip(*flat, strict=True)):
            return step
    return None


def _same(a, b):
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _same_rows(one, other):
    def rows(batches):
        arrays = [keras.tree.flatten(batch)[0] for batch in batches]
        return sorted(row.tobytes() for array in arrays for row in array)

    return rows(one) == rows(other)


def in_another_order(batches: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Returns the batches with the rows of each in reverse order: for one replica the same training.

    Args:
        batches: Tuples of arrays.

    Returns:
        New tuples.
    """
    return [keras.tree.map_structure(lambda array: array[::-1].copy(), batch) for batch in batches]
