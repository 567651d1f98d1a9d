"""One replica's view of a global batch: the two calls that make a hand-written step exact."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras import row_draws
from mirrored_keras.loss_terms import term_of
from mirrored_keras.replica import collective, update
from mirrored_keras.replica.rows import first_leaf, rows_of
from mirrored_keras.replica.thread_state import own_tensors_kept
from mirrored_keras.step import scale
from mirrored_keras.step_records import note_denominator

_ACTIVE = threading.local()  # every replica runs in a thread of its own


class GlobalBatch:
    """Counts the rows of a batch on this replica and on all, and scales and applies by them.

    With B rows on this replica and G = sum of B over the replicas, a step is exact when

    1. the loss L_r, a mean over this replica's rows, becomes `share(L_r)` = (B / G) * L_r before the
       gradient is taken, and
    2. `apply_gradients` sums the gradients over the replicas once and updates with the sum.

    Without a strategy, or with one replica, both calls change nothing. Make it in replica context
    (inside `train_step`, or inside the function given to `strategy.run`).

    Args:
        data: The features of this replica: a tensor or a structure of tensors; the first dimension
            of its first tensor is B. May have no rows at all.

    Example:
        >>> import keras, tensorflow as tf
        >>> from mirrored_keras import DistributedModel, GlobalBatch
        >>> class Model(DistributedModel):
        ...     def train_step(self, data):
        ...         x, y = data
        ...         batch = GlobalBatch(x)
        ...         with tf.GradientTape() as tape:
        ...             loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
        ...             share = batch.share(loss)
        ...         gradients = tape.gradient(share, self.trainable_variables)
        ...         batch.apply_gradients(self.optimizer, gradients, self.trainable_variables)
        ...         return {"loss": loss}
        >>> inputs = keras.Input((3,))
        >>> model = Model(inputs, keras.layers.Dense(1)(inputs))
        >>> model.compile("sgd")
        >>> history = model.fit(tf.ones((4, 3)), tf.ones((4, 1)), verbose=0)
    """

    #: Whether these are only a piece of a replica's rows, with the other pieces before and after it.
    is_piece = False

    def __init__(self, data: Any):
        self._leaf = first_leaf(data)
        self._global_rows = None
        self._first_row = None
        self._has_rows: bool | None = None
        self._model = None
        self.num_replicas = collective.replicas_in_context()
        # whether these rows are all of the global batch: one replica, and not a piece of its rows
        active = self.active()
        self.is_whole: bool = self.num_replicas == 1 and (active is None or active.is_whole)
        self.rows = _without_stand_in(rows_of(self._leaf))
        # what a step has done with this batch; read after the step to notice a forgotten call
        self.was_shared = False
        self.loss_was_computed = False

    @classmethod
    def of_step(
        cls,
        data: Any,
        *,
        model: keras.Model,
        rows: Any = None,
        global_rows: Any = None,
        first_row: Any = None,
        has_rows: bool | None = None,
    ) -> "GlobalBatch":
        """Returns the batch of a step that the package runs itself.

        Args:
            data: Features of this replica.
            model: The model; what its layers hold is kept apart between replicas.
            rows: B where `data` has a row that stands in for none, else `None`.
            global_rows: G when it is known already, else `None`.
            first_row: `first_row` when it is known already, else `None`.
            has_rows: Whether B > 0 when that is known already, else `None`.

        Returns:
            A `GlobalBatch`.
        """
        batch = cls(data)
        batch._model, batch._global_rows, batch._first_row = model, global_rows, first_row
        batch.rows = batch.rows if rows is None else rows
        batch._has_rows = has_rows
        return batch

    @classmethod
    def current(cls, data: Any = None) -> "GlobalBatch":
        """Returns the batch that the running step works on, or a new one for `data`.

        Args:
            data: Features (or predictions) that tell the rows when no step is running.

        Returns:
            A `GlobalBatch`.
        """
        return cls.active() or cls(data)

    @classmethod
    def active(cls) -> "GlobalBatch | None":
        """Returns the batch that the running step works on, or `None` outside a step."""
        batches = getattr(_ACTIVE, "batches", None)
        return batches[-1] if batches else None

    def __enter__(self) -> "GlobalBatch":
        _ACTIVE.__dict__.setdefault("batches", []).append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        _ACTIVE.batches.pop()

    @property
    def has_rows(self) -> tf.Tensor | bool:
        """Whether B > 0 on this replica: a bool when that is known beforehand, else a scalar tensor."""
        if self._has_rows is not None:
            return self._has_rows
        outer = self._outer()
        return self.rows > 0 if outer is None else outer.has_rows

    def zeros_without_rows(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the value on a replica with rows, and zeros on one without, whatever the value is there.

        Args:
            value: Any tensor.

        Returns:
            Same shape and dtype.
        """
        return value if self.has_rows is True else tf.where(self.has_rows, value, tf.zeros_like(value))

    @property
    def global_rows(self) -> tf.Tensor | int:
        """G, the rows of the global batch on all replicas."""
        return self.sum_over_replicas([])[0]

    @property
    def first_row(self) -> tf.Tensor | int:
        """Index of this replica's first row in the global batch: the rows of all replicas before it."""
        if self.num_replicas == 1:
            return 0
        outer = self._outer()
        if outer is not None:
            return outer.first_row
        if self._first_row is None:
            with own_tensors_kept(self._model):
                before, total = collective.rows_before_and_in_all(tf.reshape(tf.cast(self.rows, tf.int32), [1]))
            self._first_row, self._global_rows = before[0], total[0]
        return self._first_row

    def draw(self, function: Callable[[Any], Any]) -> Any:
        """Returns random numbers for this replica's rows; with draws by row, those that one replica draws for them.

        `batch.draw(lambda rows: keras.random.normal((rows, 8), seed=self.seed_generator))`

        Args:
            function: Takes a number of rows, which may be a tensor; returns a structure of tensors with as many.

        Returns:
            The structure with the rows of this replica's data; one row where it stands in for none.
        """
        return row_draws.drawn(function, self, rows_of(self._leaf))

    @property
    def model(self) -> keras.Model | None:
        """The model whose step works on this batch, if the package runs the step."""
        return self._model

    def sum_over_replicas(self, values: Sequence[tf.Tensor | None]) -> tuple[Any, list[tf.Tensor | None]]:
        """Sums a few numbers and the row count over the replicas, together in one small reduction.

        Args:
            values: Scalars, or `None`, which stays `None`.

        Returns:
            G, and the sums in the order of `values`.
        """
        if self.is_whole:
            return self.rows, list(values)
        outer = self._outer()
        if outer is not None:
            return outer.sum_over_replicas(values)
        numbers = [v for v in values if v is not None]
        dtype = tf.float64 if any(v.dtype == tf.float64 for v in numbers) else tf.float32
        wanted = numbers if self._global_rows is not None else [self.rows, *numbers]
        if wanted:
            with own_tensors_kept(self._model):
                packed = collective.all_sum_small(tf.stack([tf.cast(v, dtype) for v in wanted]))
            sums = tf.unstack(packed, num=len(wanted))
            if self._global_rows is None:
                self._global_rows = tf.cast(sums.pop(0), tf.int32)
            numbers = sums
        found = iter(numbers)
        return self._global_rows, [None if v is None else next(found) for v in values]

    def _outer(self):
        # a batch made inside a step for the same features shares the step's count
        active = self.active()
        return active if active is not None and active is not self and active._leaf is self._leaf else None

    def reducing(self) -> contextlib.AbstractContextManager:
        """Returns a context manager to hold around a reduction: each replica's layers keep their tensors."""
        return own_tensors_kept(self._model)

    def share(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns this replica's share (B / G) * L_r of the loss of the global batch.

        Args:
            loss: L_r, a float tensor in "mean of this replica's rows" units: what `compute_loss`
                returns, or a plain mean over the rows. Regularisation penalties may be added as they are.

        Returns:
            Same shape and dtype; summed over the replicas it is the loss of one replica. 0 on a
            replica without rows, whatever `loss` is there.
        """
        self._mark_shared()
        if self.is_whole:
            return loss
        loss = tf.convert_to_tensor(loss)
        return scale.share_of_global_loss(loss, rows=self.rows, global_rows=self.global_rows, has_rows=self.has_rows)

    def loss(self, loss: keras.losses.Loss, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        """Returns a Keras loss object's value in "mean of this replica's rows" units, ready for `share`.

        L_r = (G / B) * n / D with n, d the loss's numerator and denominator (weights and masks in both,
        as its reduction says) and D = sum of d over the replicas. Calling the object itself under a
        strategy divides by this replica's elements and by the number of replicas.

        Args:
            loss: Any `keras.losses.Loss`.
            y_true: Targets of this replica.
            y_pred: Predictions.
            sample_weight: Weight per row or element, or `None`.

        Returns:
            A scalar (a vector for `reduction=None`); 0 on a replica without rows.
        """
        if self.is_whole:
            return loss(y_true, y_pred, sample_weight)
        term = term_of(loss, y_true, y_pred, sample_weight, rows=self.rows, has_rows=self.has_rows)
        global_rows, sums = self.sum_over_replicas(scale.sums_needed([term]))
        note_denominator(loss.name, sums[0])
        return scale.mean_over_rows([term], sums, rows=self.rows, global_rows=global_rows, dtype=loss.dtype)[0]

    def sum_of_rows(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns a loss that sums over this replica's rows in "mean of rows" units: (G / B) * loss.

        Use it in `add_loss` for a value that is a sum over rows rather than a mean (Keras reads every
        added loss as a mean): `self.add_loss(GlobalBatch.current(x).sum_of_rows(value))`.

        Args:
            loss: A sum over this replica's rows.

        Returns:
            Same shape and dtype; unchanged with one replica, 0 without rows.
        """
        if self.is_whole:
            return loss
        loss = tf.convert_to_tensor(loss)
        return loss * scale.rows_ratio(self.global_rows, self.rows, loss.dtype)

    def mean(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the mean over the rows of the global batch of a mean over this replica's rows.

        Args:
            value: A float scalar, a mean over this replica's rows; ignored on a replica without rows.

        Returns:
            sum_r (B_r / G) * value_r, the same on every replica.
        """
        value = tf.convert_to_tensor(value)
        if self.is_whole:
            return value
        share = scale.share_of_global_loss(value, rows=self.rows, global_rows=self.global_rows, has_rows=self.has_rows)
        with own_tensors_kept(self._model):
            return collective.all_sum_small(share)

    def apply_gradients(
        self,
        optimizer: keras.optimizers.Optimizer,
        gradients: Sequence[collective.Gradient],
        variables: Sequence[Any],
    ) -> None:
        """Sums gradients over the replicas, once, and updates the variables with the sum.

        The gradients of a replica without rows are replaced by zeros first. Clipping, weight decay,
        averages and constraints are the optimizer's own and act on the sum, as on one replica.

        Args:
            optimizer: Any Keras optimizer; built here if it is not yet.
            gradients: d share / d variable, one per variable, `None` where there is none.
            variables: The variables, in the same order.

        Raises:
            ValueError: No variable has a gradient.
        """
        gradients, variables = list(gradients), list(variables)
        with own_tensors_kept(self._model if self.num_replicas > 1 else None):
            if self.num_replicas > 1:
                update.build_optimizer(optimizer, variables)
                gradients = update.select_where_rows(gradients, self.has_rows)
                gradients = collective.all_sum(gradients)
            update.apply_summed(optimizer, gradients, variables)

    def _mark_shared(self):
        self.was_shared = True
        active = self.active()
        if active is not None:
            active.was_shared = True  # also when this batch was made for features that the step has transformed


def _without_stand_in(rows):
    # inside a step of a replica without rows, a row of zeros may stand in for none
    active = GlobalBatch.active()
    if active is None or active.has_rows is True:
        return rows
    return tf.where(active.has_rows, rows, 0)
