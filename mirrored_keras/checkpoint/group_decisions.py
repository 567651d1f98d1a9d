"""What several workers must decide alike: whether a state is due by the clock, and whether one was asked to end."""

import contextlib
import sys
import time
from typing import Any

import numpy as np

from mirrored_keras.errors import CheckpointError, CollectiveError, message
from mirrored_keras.replica import workers

#: Seconds between two looks at the other workers, so that looking costs nothing that shows.
_SECONDS_BETWEEN_LOOKS = 1.0
_MOST_STEPS_BETWEEN_LOOKS = 1000
#: A process that has its sum may still have to hand on parts of it to others.
_SECONDS_TO_PART = 1.0


class GroupDecisions:
    """Lets all workers do the same after the same step. With one worker, its own wish is the decision.

    Clocks and signals differ between workers. After steps that all of them know beforehand they tell each other, about
    once a second; the chief's clock says how many steps that is.

    Args:
        strategy: The model's.
    """

    def __init__(self, strategy: Any):
        self._strategy = strategy
        self._are_several = workers.are_several(strategy)
        self._left = 1
        self._steps = 0
        self._time = time.monotonic()

    def agree(self, *, due: bool, signal: int | None, always: bool = False) -> tuple[bool, int | None]:
        """Returns what all workers do now.

        Args:
            due: Whether this worker's clock asks for a state.
            signal: The signal that this worker has got, if any.
            always: Whether to look now, whenever the last look was.

        Returns:
            Whether any worker's clock asks for a state, and a signal that any worker has got.
        """
        if not self._are_several:
            return due, signal
        self._steps += 1
        self._left -= 1
        if self._left > 0 and not always:
            return False, None
        seconds = max((time.monotonic() - self._time) / self._steps, 1e-6)
        table = workers.gathered(self._strategy, [due, signal or 0, seconds], what="a look at the other workers")
        self._left = int(np.clip(_SECONDS_BETWEEN_LOOKS / table[0, 2], 1, _MOST_STEPS_BETWEEN_LOOKS))
        self._steps, self._time = 0, time.monotonic()
        found = int(table[:, 1].max())
        if found and not signal:
            worker = workers.name_of(self._strategy, int(table[:, 1].argmax()))
            print(f"mirrored_keras: {worker} was asked to end (signal {found}); so ends this one.", file=sys.stderr)
        return bool(table[:, 0].any()), found or None

    def part(self) -> None:
        """Waits, before this worker ends, until the chief has written and nobody needs this process any more."""
        if self._are_several:
            # who comes last may find the others gone already, and needs them no longer
            with contextlib.suppress(CollectiveError):
                workers.gathered(self._strategy, [0], what="the end of all workers")
            time.sleep(_SECONDS_TO_PART)

    def check_same_state(self, header: dict[str, Any] | None, folder: str) -> None:
        """Refuses a folder that is not the same one for all workers.

        Args:
            header: Of the state that this worker has found.
            folder: Where.

        Raises:
            CheckpointError: Workers have found other states.
        """
        if not self._are_several:
            return
        mine = [-1, -1, -1] if header is None else [header["epoch"], header["step"], header["seed"]]
        table = workers.gathered(self._strategy, mine, what="the start of `fit` with Resume on every worker")
        others = np.flatnonzero(np.any(table != table[0], axis=1))
        if len(others):
            shown = [f"{workers.name_of(self._strategy, int(i))}: {_shown(table[int(i)])}" for i in (0, others[0])]
            raise CheckpointError(
                message(
                    "All workers go on from the same state: the folder of `Resume` must be one that all of them see.",
                    f"folder={folder!r}; {', '.join(shown)}",
                    "Resume('/a/folder/that/all/machines/share')",
                )
            )

    def seed(self, drawn: int) -> int:
        """Returns a seed for all workers.

        Args:
            drawn: This worker's.
        """
        return workers.seed_of_chief(self._strategy, drawn) if self._are_several else drawn

    @property
    def writes(self) -> bool:
        """Whether this worker writes the files."""
        return workers.is_chief(self._strategy)


def _shown(row):
    return "no state" if row[0] < 0 else f"epoch {row[0]:g}, step {row[1]:g}"
