"""The values of all variables after every step: in memory while they are few, in files when they are many."""

import pathlib
import shutil
import tempfile
import weakref
from collections.abc import Sequence

import numpy as np

_LARGEST_IN_MEMORY = 512 * 2**20


class Snapshots:
    """A list of lists of arrays, one list per step.

    Args:
        largest_in_memory: Bytes; what goes beyond lies in a temporary folder that ends with this object.

    Example:
        >>> import numpy as np
        >>> snapshots = Snapshots()
        >>> snapshots.append([np.zeros(3), np.ones(2)])
        >>> len(snapshots), snapshots[0][1].tolist()
        (1, [1.0, 1.0])
    """

    def __init__(self, largest_in_memory: int = _LARGEST_IN_MEMORY):
        self._left = largest_in_memory
        self._steps: list[list[np.ndarray] | pathlib.Path] = []
        self._folder: str | None = None

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, step: int) -> list[np.ndarray]:
        found = self._steps[step]
        if isinstance(found, list):
            return found
        with np.load(found) as arrays:
            return [arrays[f"arr_{number}"] for number in range(len(arrays.files))]

    def append(self, arrays: Sequence[np.ndarray]) -> None:
        """Adds the values of one step.

        Args:
            arrays: One per variable.
        """
        self._left -= sum(array.nbytes for array in arrays)
        if self._left >= 0:
            self._steps.append(list(arrays))
            return
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="mirrored-keras-check-")
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        path = pathlib.Path(self._folder) / f"{len(self._steps)}.npz"
        np.savez(path, *arrays)
        self._steps.append(path)
