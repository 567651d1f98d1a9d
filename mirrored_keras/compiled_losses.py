"""The losses given to `compile`, as terms that are summed over replicas before they are divided."""

import threading
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.gathering import check_all_rows_are_there
from mirrored_keras.global_batch import GlobalBatch
from mirrored_keras.loss_terms import term_of
from mirrored_keras.replica import private
from mirrored_keras.step import scale
from mirrored_keras.step_records import are_noted, note_denominator
from mirrored_keras.whole_batch_loss import name_of_a_loss_over_rows, warn_of_a_loss_over_rows


class LossTracker(keras.metrics.Mean):
    """The logged `loss`: sum of B * L_r over sum of B, over replicas and batches.

    `add` is what the package's own steps call. A user's step that updates it without a weight, as the
    custom `train_step` of Keras' guides does, counts every global batch once.
    """

    def __init__(self, name: str = "loss", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.was_updated = False

    def add(self, loss: tf.Tensor, batch: GlobalBatch) -> None:
        """Adds one batch.

        Args:
            loss: L_r of this replica, a scalar, or a vector for an unreduced loss.
            batch: The rows it stands for; a replica without rows adds nothing.
        """
        self.was_updated = True
        loss = tf.convert_to_tensor(loss)
        if not batch.is_whole:
            if loss.shape.rank:
                # an unreduced loss: its share of the global batch, averaged as one replica averages it
                loss = tf.reduce_mean(loss) * scale.rows_ratio(batch.rows, batch.global_rows, loss.dtype)
            self._add_rows(batch.zeros_without_rows(loss), batch.rows)
        else:
            super().update_state(loss, sample_weight=batch.rows)

    def _add_rows(self, loss, rows):
        # what `keras.metrics.Mean` makes of a scalar and a weight, in a third of the ops
        rows = tf.cast(rows, self.total.dtype)
        self.total.assign_add(tf.cast(loss, self.total.dtype) * rows)
        self.count.assign_add(rows)

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Adds a mean over this replica's rows; without a weight it counts B / G."""
        self.was_updated = True
        batch = GlobalBatch.active()
        if batch is not None and not batch.is_whole and sample_weight is None:
            values = tf.convert_to_tensor(values)
            if values.shape.rank == 0:
                sample_weight = scale.rows_ratio(batch.rows, batch.global_rows, values.dtype)
                values = batch.zeros_without_rows(values)
        super().update_state(values, sample_weight=sample_weight)


class OutputLossTracker(LossTracker):
    """The logged loss of one output; Keras' own update of it is replaced by `add`."""

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Does nothing: Keras counts batches here, `CompiledLosses` counts rows by `add`."""


class CompiledLosses(private.CompileLoss):
    """Keras' matching of losses to outputs, with sums over the global batch inside.

    On one replica every loss is computed by Keras itself. On several, each becomes a numerator and a
    denominator; the denominators of all losses and the row count are summed over replicas in one
    small reduction, and what is returned is L_r = (G / B) * sum_k weight_k * n_k / D_k.
    """

    _flat_losses: list[Any]

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._local = threading.local()  # replicas trace in threads of their own

    def build(self, y_true: Any, y_pred: Any) -> None:
        """Matches losses to outputs as Keras does, then wraps each loss.

        Args:
            y_true: Structure of targets.
            y_pred: Structure of predictions.
        """
        super().build(y_true, y_pred)
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            for entry in self._flat_losses:
                warn_of_a_loss_over_rows(entry.loss)
        self._metrics[:] = [OutputLossTracker(name=metric.name) for metric in self._metrics]
        self._flat_losses = [
            entry._replace(loss=_RecordedLoss(entry.loss, entry.loss_weights, self._local, entry.name))
            for entry in self._flat_losses
        ]

    def call(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor | None:
        """Returns the total loss of this replica in "mean of its rows" units.

        Args:
            y_true: Targets.
            y_pred: Predictions, masks riding on them.
            sample_weight: Weights, in any form that Keras takes.

        Returns:
            A scalar, a vector for unreduced losses, or `None` without a loss.
        """
        batch = GlobalBatch.current(y_pred)
        batch.loss_was_computed = True
        self._local.batch, self._local.records = batch, []
        total = super().call(y_true, y_pred, sample_weight)
        records = self._local.records
        self._local.records = []
        if batch.is_whole:
            self._update_trackers([record.value for record in records], batch)
            return total
        if not keras.tree.is_nested(y_true) and not keras.tree.is_nested(y_pred):
            records = records[:1]  # as Keras: one output has one loss
        return self._combine(records, batch) if records else None

    def _combine(self, records, batch):
        terms = [record.value for record in records]
        global_rows, sums = batch.sum_over_replicas(scale.sums_needed(terms))
        values = scale.mean_over_rows(
            terms,
            sums,
            rows=batch.rows,
            global_rows=global_rows,
            dtype=self.dtype,
        )
        self._update_trackers(values, batch)
        weighted = [
            value if record.weight is None else value * tf.convert_to_tensor(record.weight, value.dtype)
            for value, record in zip(values, records, strict=True)
        ]
        for index, record in enumerate(records):
            note_denominator(record.name, sums[3 * index])
        return scale.total_over_losses(weighted, rows=batch.rows, global_rows=global_rows)

    def _update_trackers(self, values, batch):
        for tracker, value in zip(self._metrics, values, strict=False):
            tracker.add(value, batch)


class _Record:
    def __init__(self, value: Any, weight: Any, name: str):
        self.value = value
        self.weight = weight
        self.name = name


class _RecordedLoss:
    """One loss; hands what it computed to the `CompiledLosses` that calls it."""

    def __init__(self, loss: keras.losses.Loss, weight: Any, local: threading.local, output: str | None = None):
        self.loss = loss
        self._output = output or loss.name
        self.weight = weight
        self.name = loss.name
        self._local = local

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        batch = self._local.batch
        if batch.is_whole:
            value = self.loss(y_true, y_pred, sample_weight)
            self._local.records.append(_Record(value, self.weight, self._output))
            if are_noted():
                term = term_of(self.loss, y_true, y_pred, sample_weight, rows=batch.rows, has_rows=True)
                note_denominator(self._output, term.denominator)
            return value
        if batch.is_piece and name_of_a_loss_over_rows(self.loss):
            check_all_rows_are_there(self.name)
        term = term_of(self.loss, y_true, y_pred, sample_weight, rows=batch.rows, has_rows=batch.has_rows)
        self._local.records.append(_Record(term, self.weight, self._output))
        return tf.zeros((), self.loss.dtype)  # Keras' own total is not used
