"""An order of batches that every worker draws alike, for what Keras would shuffle by the process' own generator."""

import types
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def draws_rows(data: Any) -> bool:
    """Returns whether `fit` shuffles the rows of these data itself: arrays, tensors and frames.

    Args:
        data: What was given as `x`.
    """
    others = (tf.data.Dataset, tf.distribute.DistributedDataset, keras.utils.PyDataset, types.GeneratorType)
    return not isinstance(data, others) and not _is_loader(data)


def _is_loader(data):
    return hasattr(data, "__next__") or type(data).__module__.startswith("torch.")


class SameOrder(keras.utils.PyDataset):
    """A `PyDataset` whose batches come in an order that a seed and the number of the epoch decide.

    Args:
        dataset: The user's.
        seed: The same on every worker.
    """

    def __init__(self, dataset: keras.utils.PyDataset, *, seed: int):
        super().__init__(
            workers=dataset.workers,
            use_multiprocessing=dataset.use_multiprocessing,
            max_queue_size=dataset.max_queue_size,
        )
        self.dataset = dataset
        self._seed = seed
        self._epoch = 0
        self._order: np.ndarray | None = None

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch; `None` if it does not end."""
        return self.dataset.num_batches

    def __getitem__(self, index: int) -> Any:
        count = self.dataset.num_batches
        if count is None:
            return self.dataset[index]
        if self._order is None:
            # the stream of `RandomState` is the same in every version of NumPy
            self._order = np.random.RandomState([self._seed, self._epoch]).permutation(count)
        return self.dataset[int(self._order[index])]

    def on_epoch_begin(self) -> None:
        self.dataset.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._epoch += 1
        self._order = None
        self.dataset.on_epoch_end()
