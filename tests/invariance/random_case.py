"""Cases drawn at random from a seed: sizes, replicas, losses, weights, masks, clipping, optimizers."""

import functools

import numpy as np
from keras import optimizers

from invariance import models, parts, updates
from invariance.case import Case
from invariance.losses import make_loss

OPTIMIZERS = {
    "SGD": (optimizers.SGD, 0.2),
    "momentum": (functools.partial(optimizers.SGD, momentum=0.9), 0.1),
    "Adam": (optimizers.Adam, 0.05),
    "AdamW": (functools.partial(optimizers.AdamW, weight_decay=0.05), 0.05),
    "RMSprop": (optimizers.RMSprop, 0.02),
}
STYLES = (
    models.dense,
    models.subclassed,
    models.nested,
    models.kernel_penalty,
    models.activity_penalty,
    models.added_mean,
    models.constrained,
)


def random_case(seed: int) -> tuple[Case, int]:
    """Returns a case and a number of replicas; the same seed gives the same case everywhere."""
    random = np.random.default_rng(seed)
    size = int(random.integers(3, 27)), int(random.integers(2, 14))
    replicas = int(random.integers(2, 6))
    reduction = _choice(random, parts.REDUCTIONS)
    sparse = bool(random.random() < 0.3)
    kind = "sparse" if sparse else _choice(random, ("mse", "huber"))
    chosen = (_tokens if random.random() < 0.5 else _rows)(random, reduction, sparse)
    clipped, optimizer = _optimizer(random, reduction)
    words = f"R={replicas}, {size[0]} rows by {size[1]}, {kind}, {reduction}"
    case = Case(
        name=f"{words}, {chosen.pop('words')}, {clipped}",
        losses=lambda: [make_loss(kind, reduction)],
        optimizer=optimizer,
        tail=size,
        metrics=("accuracy",) if sparse else ("mae",),
        weighted=("accuracy",) if sparse else ("mse",),
        dataset=bool(random.random() < 0.5),
        **chosen,
    )
    return case, replicas


def _choice(random, options):
    return options[random.integers(len(options))]


def _rows(random, reduction, sparse):
    # A penalty cannot be added to an unreduced loss: Keras refuses.
    style = _choice(random, STYLES[:2] if reduction is None else STYLES)
    weights = _choice(random, ("none", "rows", "zero batch"))
    words = f"{style.__name__}, weights: {weights}"
    return {"model": style, "data": parts.rows(weights, sparse), "words": words}


def _tokens(random, reduction, sparse):
    weights = _choice(random, ("none", "rows", "tokens", "zero batch"))
    masked, blank = bool(random.random() < 0.7), bool(random.random() < 0.3)
    return {
        "model": models.tagger if masked else models.tagger_without_mask,
        "data": parts.tokens(weights, sparse, blank),
        "masks": parts.padding_mask if masked else None,
        "words": f"tagger, masked: {masked}, blank batch: {blank}, weights: {weights}",
    }


def _optimizer(random, reduction):
    name = _choice(random, tuple(OPTIMIZERS))
    make, rate = OPTIMIZERS[name]
    limit = _choice(random, ("none", *updates.LIMITS))
    options = {} if limit == "none" else {limit: updates.LIMITS[limit]}
    if reduction in ("sum", None) and name in ("SGD", "momentum") and not options:
        rate /= 30  # a sum over a batch is some 30 times its mean
    return f"{name}, clipping: {limit}", functools.partial(make, rate, **options)
