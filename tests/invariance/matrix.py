"""Covering arrays: every pair of two levels of reduction, loss, weights, mask, tail and replicas."""

import itertools

from invariance import data, models
from invariance.case import Case
from invariance.losses import make_loss
from invariance.pairs import cover_pairs
from invariance.parts import REDUCTIONS, padding_mask, rows, sgd, tokens


def _rate(reduction):
    """A sum over a batch is some 30 times its mean."""
    return 0.01 if reduction in ("sum", None) else 0.4


def _matrix_case(kind, level, index, **changes):
    name = "-".join([kind, *(str(level[key]) for key in sorted(level) if key != "replicas")]).replace(" ", "_")
    sparse = level["loss"] == "sparse"
    return Case(
        name=name,
        losses=lambda: [make_loss(level["loss"], level["reduction"])],
        optimizer=sgd(_rate(level["reduction"])),
        metrics=("accuracy",) if sparse else ("mae",),
        weighted=("accuracy",) if sparse else ("mse",),
        dataset=index % 2 == 1,
        replicas=(level["replicas"],),
        **changes,
    )


def token_cases():
    levels = cover_pairs(
        {
            "reduction": REDUCTIONS,
            "loss": ("mse", "sparse", "huber"),
            "weights": ("none", "rows", "tokens", "zero batch"),
            "mask": ("off", "lengths", "blank batch"),
            "tail": tuple(data.TAILS),
            "replicas": (2, 3, 4),
        }
    )
    for index, level in enumerate(levels):
        masked = level["mask"] != "off"
        yield _matrix_case(
            "tokens",
            level,
            index,
            model=models.tagger if masked else models.tagger_without_mask,
            data=tokens(level["weights"], level["loss"] == "sparse", level["mask"] == "blank batch"),
            tail=level["tail"],
            masks=padding_mask if masked else None,
            stock="close",  # gradients of the table: sums over duplicates in another order
        )


def row_cases():
    levels = cover_pairs(
        {
            "reduction": REDUCTIONS,
            "loss": ("mae", "sparse", "huber"),
            "weights": ("none", "rows", "zero batch"),
            "replicas": (2, 3, 4),
        }
    )
    tails = itertools.cycle(data.TAILS)
    for index, level in enumerate(levels):
        yield _matrix_case(
            "rows",
            level,
            index,
            model=models.dense,
            data=rows(level["weights"], level["loss"] == "sparse"),
            tail=next(tails),
        )
