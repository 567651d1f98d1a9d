"""What the tables of cases are made of: data, optimizers and the usual case."""

import functools

from keras import optimizers

from invariance import data, models
from invariance.case import Case
from invariance.losses import make_loss

REDUCTIONS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "sum", None)


def sgd(rate=0.1, **options):
    return functools.partial(optimizers.SGD, rate, **options)


def rows(weights="none", sparse=False):
    """Data of the dense models: one vector or one label per row."""

    def make(count, batch):
        y = data.labels(count) if sparse else data.targets(count)
        return data.features(count), y, data.row_weights(count, batch, weights)

    return make


def tokens(weights="none", sparse=False, blank=False):
    """Data of the taggers: one vector or one label per token."""

    def make(count, batch):
        x = data.sentences(count, batch, blank)
        return x, data.token_targets(count, sparse), data.token_weights(count, batch, weights)

    return make


def word_rows(weights="none"):
    """Sentences with one vector per row."""

    def make(count, batch):
        x = data.sentences(count, batch)
        return x, data.targets(count), data.row_weights(count, batch, weights)

    return make


def padding_mask(x):
    """The rule of `mask_zero`, written down once more for the reference."""
    return [x != 0]


def usual_case(name, model=models.dense, **changes):
    """A case with the usual parts: a squared error, weights per row, plain SGD."""
    usual = {"data": rows("rows"), "losses": lambda: [make_loss("mse")], "optimizer": sgd()}
    return Case(name=name, model=model, **(usual | changes))
