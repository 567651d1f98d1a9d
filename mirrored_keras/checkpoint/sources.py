"""The data of one `fit` as something that can be entered in the middle, or the reason why it cannot."""

from typing import Any

import tensorflow as tf

from mirrored_keras.checkpoint.ordered_rows import OrderedArrays, OrderedPyDataset
from mirrored_keras.replica import dataset_order, private

_SEED_FIX = "dataset.shuffle(buffer, seed=1), and no `deterministic=False`; random maps by tf.random.stateless_uniform"


class Source:
    """The data that a `fit` trains on.

    Attributes:
        problem: Why a pass over it cannot be entered in the middle; empty if it can.
        fix: What to do about that.
        description: What must agree between the `fit` that wrote a state and the one that goes on.
        view: The user's `PyDataset` in an order of ours, if it is one.

    Args:
        epoch_iterator: Keras' iterator over the batches.
        strategy: The model's.
        seed: Of the orders that are made here.
    """

    def __init__(self, epoch_iterator: Any, *, strategy: tf.distribute.Strategy, seed: int):
        self.problem = self.fix = ""
        self.view: OrderedPyDataset | None = None
        self._iterator = epoch_iterator
        self._strategy = strategy
        self._ordered: OrderedArrays | OrderedPyDataset | None = None
        self._dataset: tf.data.Dataset | None = None
        self._draws_all = False
        self._distributed = private.distributed_dataset_of(epoch_iterator)
        adapter = epoch_iterator.data_adapter
        kind = private.kind_of_data(adapter)
        self.description: dict[str, Any] = {
            "kind": kind,
            "steps_per_epoch": epoch_iterator.steps_per_epoch,
            "batches": adapter.num_batches,
        }
        getattr(self, f"_take_{kind}")(adapter, seed)

    def _take_arrays(self, adapter, seed):
        self.description.update(private.array_options(adapter))
        self._ordered = OrderedArrays(adapter, seed=seed)
        self._distributed = self._strategy.experimental_distribute_dataset(self._ordered.dataset)

    def _take_py_dataset(self, adapter, seed):
        finite = adapter.num_batches is not None
        self.description["shuffle"] = adapter.shuffle and finite
        if adapter.enqueuer is not None and finite and self._iterator.steps_per_epoch:
            self.problem = "a PyDataset with workers whose epochs end in the middle of it (`steps_per_epoch`)"
            self.fix = "model.fit(...) without `steps_per_epoch`, or workers=1"
            return
        self.view = OrderedPyDataset(adapter.py_dataset, shuffle=adapter.shuffle, seed=seed)
        self._ordered = self.view
        adapter.py_dataset, adapter.shuffle = self.view, False
        if adapter.enqueuer is not None:
            adapter.enqueuer.py_dataset, adapter.enqueuer.shuffle = self.view, False

    def _take_dataset(self, adapter, seed):
        dataset = adapter.get_tf_dataset()
        if not isinstance(dataset, tf.data.Dataset):
            self.problem, self.fix = "a dataset that is distributed already", "model.fit(dataset), not distributed"
            return
        self._dataset = dataset
        order = dataset_order.order_of(dataset)
        self._draws_all = order.repeats
        self.description["element"] = str(dataset.element_spec)
        self.description["batch_size"] = list(order.batch_sizes)
        if order.problem:
            self.problem = f"a dataset with {order.problem}"
            self.fix = _SEED_FIX
        else:
            self.description["seeds"] = list(order.seeds)

    def _take_stream(self, adapter, seed):
        self.problem = f"{type(adapter).__name__.removesuffix('Adapter')}, which cannot be read again from the start"
        self.fix = "keras.utils.PyDataset, or tf.data.Dataset.from_generator(function, output_signature=...)"

    @property
    def begins_with_epochs(self) -> bool:
        """Whether its passes are its epochs, and are made ready before Keras asks for an iterator."""
        return self.view is not None and self.view.num_batches is not None and not self._iterator.steps_per_epoch

    def begin(self, number: int, first: int) -> None:
        """Says which pass is read next, where orders are made here.

        Args:
            number: Its number.
            first: The batch that it begins with.
        """
        if self._ordered is not None:
            self._ordered.begin_pass(number, first)

    def iterator(self) -> Any:
        """Returns an iterator over the next pass, as Keras makes it."""
        return iter(self._distributed)

    def iterator_after(self, passes: list[int]) -> Any:
        """Returns the iterator of the last of several passes, after the batches that were drawn from it.

        The orders of a seeded shuffle follow one another, from iterator to iterator: so all of them are made
        again. The first element draws an order; where one pass draws several, as many batches as then are read.

        Args:
            passes: For each iterator the batches that were drawn from it.

        Returns:
            The iterator.
        """
        *earlier, drawn = passes
        if self._dataset is None:
            if not self.begins_with_epochs:
                self.begin(len(passes) - 1, drawn)
            return iter(self._distributed)
        self.make_again(earlier)
        rest = self._dataset.skip(drawn) if drawn else self._dataset
        return iter(self._strategy.experimental_distribute_dataset(rest))

    def make_again(self, passes: list[int]) -> None:
        """Makes the iterators of passes that are over, so that the next one has the order that it should have.

        Args:
            passes: For each iterator the batches that were drawn from it.
        """
        if self._dataset is None or self.problem:
            return
        for drawn in passes:
            dataset = self._dataset.skip(drawn - 1) if drawn and self._draws_all else self._dataset
            iterator = iter(dataset)
            if drawn:
                next(iterator, None)
