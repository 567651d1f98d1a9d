"""Data of the invariance suite: unequal rows, unequal weights, unequal lengths, uneven batches.

Equal rows or full masks would make every wrong normalisation look right.
"""

import keras
import numpy as np

from invariance.models import CLASSES, LENGTH, WIDTH, WORDS

# Rows of the data and rows of a batch. Over R replicas a batch of G rows is cut into shares of
# G // R rows, and one more for the first G % R of them: none is empty unless G < R.
TAILS = {
    "even": (24, 12),
    "short": (19, 12),  # last batch of 7
    "single": (13, 12),  # last batch of 1: all replicas but one are empty
    "odd": (14, 7),  # the first batch, which builds the model, does not split evenly
    "tiny": (5, 2),  # fewer rows than replicas for R > 2, and a last batch of 1
    "below": (5, 12),  # less data than a batch
}


def slices(data, batch):
    """Cuts arrays, nested or `None`, into the global batches that `fit` makes of them."""
    count = len(keras.tree.flatten(data)[0])
    return [keras.tree.map_structure(lambda a, i=i: a[i : i + batch], data) for i in range(0, count, batch)]


def _random(rows):
    return np.random.default_rng(rows)


def _floats(values):
    return np.asarray(values, keras.config.floatx())


def features(rows):
    return _floats(_random(rows).normal(size=(rows, WIDTH)))


def images(rows):
    return _floats(_random(rows).normal(size=(rows, 4, 3, 1)))


def targets(rows, columns=CLASSES):
    """Values whose noise grows from row to row."""
    matrix = _random(0).normal(size=(WIDTH, columns))
    noise = _random(rows + 1).normal(size=(rows, columns))
    return _floats(features(rows) @ matrix + noise * np.linspace(0.1, 3, rows)[:, None])


def labels(rows):
    return _random(rows + 2).integers(0, CLASSES, size=(rows,))


def row_weights(rows, batch, kind):
    """Weights of rows: `None`, unequal with zeros, or unequal with a last batch of zeros."""
    if kind == "none":
        return None
    weights = _random(rows + 3).uniform(0.2, 3, size=(rows,))
    weights[1::3] = 0
    if kind == "zero batch":
        weights[(rows - 1) // batch * batch :] = 0
    return _floats(weights)


def sentences(rows, batch, blank=False):
    """Ids with 1 ... 5 words per row, the rest padding; `blank`: the last batch is all padding.

    Word ids repeat within a row, so that gradients of the embedding have duplicates to sum.
    """
    ids = _random(rows + 4).integers(1, WORDS // 2, size=(rows, LENGTH))
    lengths = 1 + np.arange(rows) ** 2 % LENGTH
    ids[np.arange(LENGTH) >= lengths[:, None]] = 0
    if blank:
        ids[(rows - 1) // batch * batch :] = 0
    return ids.astype("int32")


def token_targets(rows, sparse):
    """One label (`sparse`) or one vector per token."""
    if sparse:
        return _random(rows + 5).integers(0, CLASSES, size=(rows, LENGTH))
    values = _random(rows + 5).normal(size=(rows, LENGTH, CLASSES))
    return _floats(values * np.linspace(0.2, 3, rows)[:, None, None])


def token_weights(rows, batch, kind):
    """Weights for tokens: `"rows"` has shape `(G, 1)`, `"tokens"` `(G, 5)`."""
    if kind in ("none", "rows", "zero batch"):
        weights = row_weights(rows, batch, kind)
        return weights if weights is None else weights[:, None]
    weights = _random(rows + 6).uniform(0, 2, size=(rows, LENGTH))
    weights[2::4, 1:] = 0
    return _floats(weights)
