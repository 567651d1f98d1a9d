"""Cases of every optimizer, every kind of clipping, and sparse gradients."""

import functools
import itertools

from keras import optimizers

from invariance import data, models
from invariance.parts import sgd, usual_case, word_rows


def _changing_rate():
    """A learning rate that changes at every step."""
    return optimizers.schedules.ExponentialDecay(0.1, decay_steps=2, decay_rate=0.7)


def _two_optimizers():
    by_layer = {"hidden/.*": optimizers.Adam(0.05)}
    return optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.SGD(0.1), by_layer))


def _optimizers_since_3_12():
    """Optimizers that Keras 3.12, the last one for Python 3.10, does not have, or has and cannot run."""
    if hasattr(optimizers, "MultiOptimizer"):
        yield "Muon", lambda: optimizers.Muon(0.05)  # in Keras 3.12 it fails on every TensorFlow variable
        yield "ScheduleFreeAdamW", lambda: optimizers.ScheduleFreeAdamW(0.05, warmup_steps=2)
        yield "MultiOptimizer", _two_optimizers


OPTIMIZERS = {
    "SGD": sgd(),
    "SGD momentum": sgd(momentum=0.9),
    "SGD nesterov, schedule": lambda: optimizers.SGD(_changing_rate(), momentum=0.9, nesterov=True),
    "SGD weight decay": sgd(weight_decay=0.1),
    "RMSprop": lambda: optimizers.RMSprop(0.02, momentum=0.5, centered=True),
    "Adam": lambda: optimizers.Adam(0.05),
    "Adam amsgrad, schedule": lambda: optimizers.Adam(_changing_rate(), amsgrad=True),
    "AdamW": lambda: optimizers.AdamW(0.05, weight_decay=0.1),
    "Adadelta": lambda: optimizers.Adadelta(1.0),
    "Adagrad": lambda: optimizers.Adagrad(0.1),
    "Adamax": lambda: optimizers.Adamax(0.05),
    "Adafactor": lambda: optimizers.Adafactor(0.1),
    "Nadam": lambda: optimizers.Nadam(0.05),
    "Ftrl": lambda: optimizers.Ftrl(0.1, l2_regularization_strength=0.1),
    "Lion": lambda: optimizers.Lion(0.02),
    "Lamb": lambda: optimizers.Lamb(0.05),
    **dict(_optimizers_since_3_12()),
    "LossScaleOptimizer": lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1)),
    "Adam EMA": lambda: optimizers.Adam(0.05, use_ema=True, ema_momentum=0.7),
    "SGD EMA overwritten": sgd(use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=2),
}

# Adam divides a gradient by its own size: the usual epsilon turns the rounding of a gradient that
# almost cancels, as sums over repeated ids do, into a visible part of the step.
SMOOTH_ADAM = functools.partial(optimizers.Adam, 0.05, epsilon=1e-2)
LIMITS = {"clipnorm": 0.3, "clipvalue": 0.05, "global_clipnorm": 0.3}


def optimizer_cases():
    tails = itertools.cycle(data.TAILS)
    counts = itertools.cycle((2, 3, 4, 2, 3, 4, 3, 2, 1))
    for name, optimizer in OPTIMIZERS.items():
        yield usual_case(
            name,
            optimizer=optimizer,
            tail=next(tails),
            replicas=(next(counts),),  # every replica updates alike, with the same sum
            # A loss scale that never overflows changes nothing.
            plain_optimizer=sgd() if name == "LossScaleOptimizer" else None,
            # Built inside the first step, Keras' own starts its averages anew at every step.
            stock="wrong" if name == "ScheduleFreeAdamW" else "equal",
        )


def clipping_cases():
    """Every limit with dense and with sparse gradients; Adam forgives a wrong scale, SGD does not."""
    tails = itertools.cycle(("short", "single", "odd"))
    for limit, value in LIMITS.items():
        for name, make in (("SGD", sgd(0.5)), ("Adam", SMOOTH_ADAM)):
            optimizer = functools.partial(make, **{limit: value})
            yield usual_case(f"{name} {limit}", optimizer=optimizer, tail=next(tails), stock="close")
            yield usual_case(
                f"{name} {limit}, sparse gradient",
                models.bag_of_words,
                data=word_rows(),
                optimizer=optimizer,
                tail=next(tails),
                stock="wrong",  # clips and squares duplicates one by one
            )


def sparse_cases():
    for name, optimizer, stock in (
        ("SGD", sgd(), "close"),
        ("SGD momentum", sgd(momentum=0.9), "close"),
        ("Adam", SMOOTH_ADAM, "wrong"),
        ("Adagrad", lambda: optimizers.Adagrad(0.1), "wrong"),
    ):
        yield usual_case(
            f"repeated ids, {name}",
            models.bag_of_words,
            data=word_rows("rows"),
            optimizer=optimizer,
            stock=stock,
        )


def accumulation_cases():
    """Every n-th global batch updates; 3 does not divide the number of batches."""
    for name, make in {
        "SGD accumulating 2": sgd(0.5, gradient_accumulation_steps=2),
        "SGD accumulating 3, clipnorm, weight decay": sgd(
            0.5, gradient_accumulation_steps=3, clipnorm=0.3, weight_decay=0.1
        ),
        "Adam accumulating 3, schedule, global_clipnorm": lambda: optimizers.Adam(
            _changing_rate(), gradient_accumulation_steps=3, global_clipnorm=0.3
        ),
        "SGD accumulating 2, EMA overwritten": sgd(
            gradient_accumulation_steps=2, use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=2
        ),
        "Adam accumulating 2, constraint": lambda: optimizers.Adam(0.05, gradient_accumulation_steps=2),
    }.items():
        model = models.constrained if "constraint" in name else models.dense
        yield usual_case(name, model, optimizer=make, tail="single" if "3" in name else "odd")
    yield usual_case(
        "Adam accumulating 2, sparse gradient",
        models.bag_of_words,
        data=word_rows(),
        optimizer=functools.partial(SMOOTH_ADAM, gradient_accumulation_steps=2),
        stock="close",
    )
