"""When `Checkpoint` saves, and which of its files it keeps: small objects, joined by `|`.

Saving: `every_steps(100)`, `every_epochs(2)`, `every_minutes(10)`; with `|` whenever one of them is due.
Retention: `latest(3)`, `best(1, "val_loss")`; with `|` what one of them keeps.

Example:
    >>> from mirrored_keras import policies
    >>> save = policies.every_epochs(1) | policies.every_minutes(10)
    >>> keep = policies.latest(2) | policies.best(1, "val_accuracy", mode="max")
    >>> keep.monitors
    ('val_accuracy',)
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mirrored_keras.errors import SetupError, message


class Since(NamedTuple):
    """What has passed since the last checkpoint.

    Attributes:
        steps: Steps of training.
        epochs: Epochs that have ended.
        seconds: Time.
        epoch_ends: Whether an epoch ends now.
    """

    steps: int
    epochs: int
    seconds: float
    epoch_ends: bool


class Saved(NamedTuple):
    """A checkpoint, as its name tells it.

    Attributes:
        epoch: Epochs that were finished.
        step: Steps of the next epoch that were done.
        metrics: The monitored numbers, by name.
        path: The file, or the folder of a checkpoint of TensorFlow.
    """

    epoch: int
    step: int
    metrics: dict[str, float]
    path: str


@dataclasses.dataclass(frozen=True)
class Saving:
    """A rule for when to save.

    Attributes:
        is_due: Takes a `Since`.
        within_epochs: Whether it looks at single steps.
    """

    is_due: Callable[[Since], bool]
    within_epochs: bool

    def __or__(self, other: "Saving") -> "Saving":
        return Saving(
            lambda since: self.is_due(since) or other.is_due(since), self.within_epochs or other.within_epochs
        )


@dataclasses.dataclass(frozen=True)
class Retention:
    """A rule for what to keep.

    Attributes:
        kept: Takes checkpoints, the oldest first, and returns those that stay.
        monitors: Names of the numbers that it needs.
    """

    kept: Callable[[Sequence[Saved]], list[Saved]]
    monitors: tuple[str, ...] = ()
    best_first: Callable[[Sequence[Saved]], list[Saved]] | None = None

    def __or__(self, other: "Retention") -> "Retention":
        def either(saved):
            stay = [*self.kept(saved), *other.kept(saved)]
            return [one for one in saved if one in stay]

        return Retention(either, (*self.monitors, *other.monitors), self.best_first or other.best_first)


def every_steps(count: int) -> Saving:
    """Saves after `count` steps, also within an epoch.

    Args:
        count: A positive number.
    """
    _check_positive("every_steps", count)
    return Saving(lambda since: since.steps >= count, within_epochs=True)


def every_minutes(count: float) -> Saving:
    """Saves after the first step that ends `count` minutes after the last checkpoint, or later.

    Args:
        count: A positive number.
    """
    _check_positive("every_minutes", count, whole=False)
    return Saving(lambda since: since.seconds >= 60 * count, within_epochs=True)


def every_epochs(count: int) -> Saving:
    """Saves at the end of every `count`-th epoch, after validation.

    Args:
        count: A positive number.
    """
    _check_positive("every_epochs", count)
    return Saving(lambda since: since.epoch_ends and since.epochs >= count, within_epochs=False)


def latest(count: int) -> Retention:
    """Keeps the newest checkpoints.

    Args:
        count: How many.
    """
    _check_positive("latest", count)
    return Retention(lambda saved: list(saved)[-count:])


def best(count: int, monitor: str, *, mode: str = "min") -> Retention:
    """Keeps the checkpoints with the best numbers; of equal ones the older. NaN is no number.

    Args:
        count: How many.
        monitor: A name in the logs of an epoch.
        mode: Whether the smallest ("min") or the largest ("max") is the best.
    """
    _check_positive("best", count)
    if mode not in ("min", "max"):
        raise SetupError(
            message('`mode` is "min" or "max".', f"mode={mode!r}", f'policies.best({count}, {monitor!r}, mode="max")')
        )
    sign = 1 if mode == "min" else -1

    def best_first(saved):
        known = [one for one in saved if not math.isnan(one.metrics.get(monitor, math.nan))]
        return sorted(known, key=lambda one: sign * one.metrics[monitor])

    return Retention(lambda saved: best_first(saved)[:count], (monitor,), best_first)


def _check_positive(name, count, *, whole=True):
    if isinstance(count, bool) or not isinstance(count, int if whole else (int, float)) or count <= 0:
        raise SetupError(
            message(
                f"`{name}` takes a positive number{', a whole one' if whole else ''}.",
                f"count={count!r}",
                f"policies.{name}(1)" if name != "best" else 'policies.best(1, "val_loss")',
            )
        )
