"""Orders that follow from a seed and a number: of the rows of arrays, and of the batches of a `PyDataset`."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mirrored_keras.replica import private


def permutation(count: int, *, seed: int, number: int) -> np.ndarray:
    """Returns an order that depends on the arguments alone.

    Args:
        count: How many things are put into order.
        seed: Of the training.
        number: Of the pass over the data.

    Returns:
        Integers, shape `(count,)`.
    """
    # the stream of `RandomState` is the same in every version of NumPy
    return np.random.RandomState([seed % 2**32, number]).permutation(count)


class OrderedArrays:
    """The arrays of a `fit` as a dataset that can begin any pass at any batch.

    Args:
        adapter: Keras' adapter of the arrays.
        seed: Of the training.
    """

    def __init__(self, adapter: Any, *, seed: int):
        options = private.array_options(adapter)
        self._rows, self._rows_per_batch, self._shuffle = options["rows"], options["batch_size"], options["shuffle"]
        self._seed = seed
        self._number = self._first = 0
        indices = tf.data.Dataset.range(1).map(self._indices).flat_map(self._batches)
        dataset = private.dataset_of_arrays(adapter, indices)
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
        options.experimental_optimization.apply_default_optimizations = False
        self.dataset = dataset.with_options(options).prefetch(tf.data.AUTOTUNE)

    def begin_pass(self, number: int, first: int) -> None:
        """Says which pass the next iterator makes.

        Args:
            number: Its number.
            first: The batch that it begins with.
        """
        self._number, self._first = number, first

    def _indices(self, _):
        indices = tf.numpy_function(self._order, [], tf.int64, stateful=True)
        return tf.ensure_shape(indices, [None])

    def _order(self):
        order = np.arange(self._rows)
        if self._shuffle == "batch":
            for start in range(0, self._rows, self._rows_per_batch):
                number = self._number * (self._rows + 1) + start
                part = order[start : start + self._rows_per_batch]
                order[start : start + self._rows_per_batch] = part[
                    permutation(len(part), seed=self._seed, number=number)
                ]
        elif self._shuffle:
            order = permutation(self._rows, seed=self._seed, number=self._number)
        return order[self._first * self._rows_per_batch :].astype(np.int64)

    def _batches(self, indices):
        # slices of one vector, not rows batched one by one, as Keras does
        whole = tf.size(indices) // self._rows_per_batch * self._rows_per_batch
        batches = tf.data.Dataset.from_tensor_slices(tf.reshape(indices[:whole], [-1, self._rows_per_batch]))
        if self._rows % self._rows_per_batch:
            rest = tf.ensure_shape(indices[whole:], [self._rows % self._rows_per_batch])
            batches = batches.concatenate(tf.data.Dataset.from_tensors(rest))
        return batches


class OrderedPyDataset(keras.utils.PyDataset):
    """A `PyDataset` that can begin at any batch, in an order of its own.

    Args:
        dataset: The user's.
        shuffle: Whether the order changes from pass to pass.
        seed: Of the training.
    """

    def __init__(self, dataset: keras.utils.PyDataset, *, shuffle: bool, seed: int):
        super().__init__(
            workers=dataset.workers,
            use_multiprocessing=dataset.use_multiprocessing,
            max_queue_size=dataset.max_queue_size,
        )
        self.dataset = dataset
        self._seed = seed
        self._shuffle = shuffle and dataset.num_batches is not None
        self._first = 0
        self._order: np.ndarray | None = None

    def begin_pass(self, number: int, first: int) -> None:
        """Says which pass is read next.

        Args:
            number: Its number.
            first: The batch that it begins with.
        """
        self._first = first
        self._order = None
        if self._shuffle:
            self._order = permutation(self.dataset.num_batches, seed=self._seed, number=number)

    @property
    def num_batches(self) -> int | None:
        """Batches that this pass still has; `None` if it does not end."""
        count = self.dataset.num_batches
        return None if count is None else count - self._first

    def __getitem__(self, index: int) -> Any:
        index += self._first
        return self.dataset[index if self._order is None else int(self._order[index])]

    def on_epoch_begin(self) -> None:
        self.dataset.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self.dataset.on_epoch_end()

    def state(self) -> Any:
        """Returns what the user's dataset remembers, where it has `get_state`; else `None`."""
        return self.dataset.get_state() if hasattr(self.dataset, "get_state") else None

    def set_state(self, state: Any) -> None:
        """Lets the user's dataset go on from a state, where it has `set_state`.

        Args:
            state: From `state`.
        """
        if state is not None and hasattr(self.dataset, "set_state"):
            self.dataset.set_state(state)

    def repeat_epochs(self, count: int) -> None:
        """Calls what is called at the ends of epochs, for epochs of which nothing is trained again.

        Args:
            count: How many.
        """
        if not hasattr(self.dataset, "set_state"):
            for _ in range(count):
                self.dataset.on_epoch_begin()
                self.dataset.on_epoch_end()
