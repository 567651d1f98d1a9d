"""What one execution of one trial has to itself: a folder, a seed, a name."""

import dataclasses
import hashlib
import os
from typing import Any


@dataclasses.dataclass(frozen=True)
class TrialContext:
    """What callback factories are given.

    Attributes:
        trial_id: Of the trial.
        execution: Its number, from 0 on.
        hyperparameters: The values of the trial.
        folder: Of this execution and no other.
        seed: Of this execution.

    Example:
        >>> from mirrored_keras.tuning import TrialContext
        >>> TrialContext("0003", 1, hyperparameters=None, folder="search/trial_0003/execution1", seed=7).name
        '0003/execution1'
    """

    trial_id: str
    execution: int
    hyperparameters: Any
    folder: str
    seed: int

    @property
    def name(self) -> str:
        """Trial and execution as a path."""
        return os.path.join(self.trial_id, f"execution{self.execution}")


def seed_of(search_seed: int, trial_id: str, *, execution: int, attempt: int) -> int:
    """Returns the seed of an execution, which follows from that of the search.

    Args:
        search_seed: Of the oracle.
        trial_id: Of the trial.
        execution: Its number.
        attempt: How often the trial has failed before; a retry with the same seed would fail again.

    Returns:
        A number below 2**31.

    Example:
        >>> seed_of(1, "0", execution=0, attempt=0) == seed_of(1, "0", execution=1, attempt=0)
        False
    """
    text = f"{search_seed}/{trial_id}/{execution}/{attempt}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 2**31
