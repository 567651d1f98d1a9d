"""Options of a tuner that are checked before anything is built."""

from typing import Any

from mirrored_keras.errors import SetupError, message
from mirrored_keras.tuning.pruning import Pruner


def check_options(keep_checkpoints: Any, diverged: Any, pruner: Any) -> None:
    """Refuses options that are none.

    Args:
        keep_checkpoints: A number of trials, or `None`.
        diverged: A word.
        pruner: A rule, or `None`.

    Raises:
        SetupError: One is something else.
    """
    whole = isinstance(keep_checkpoints, int) and not isinstance(keep_checkpoints, bool) and keep_checkpoints > 0
    if keep_checkpoints is not None and not whole:
        raise SetupError(
            message(
                "`keep_checkpoints` is a number of trials, 1 or more, or None.",
                f"keep_checkpoints={keep_checkpoints!r}",
                "tuning.RandomSearch(..., keep_checkpoints=5)",
            )
        )
    if diverged not in ("fail", "best_epoch"):
        raise SetupError(
            message(
                '`diverged` is "fail" or "best_epoch".',
                f"diverged={diverged!r}",
                'tuning.RandomSearch(..., diverged="best_epoch")',
            )
        )
    if pruner is not None and not isinstance(pruner, Pruner):
        raise SetupError(
            message(
                "`pruner` is a rule that stops trials.",
                f"pruner={pruner!r}",
                "tuning.RandomSearch(..., pruner=tuning.MedianPruner())",
            )
        )
