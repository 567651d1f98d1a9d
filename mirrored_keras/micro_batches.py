"""Micro-batches: one step on a replica's rows in k pieces, with the result of all rows at once.

A piece of b rows is to the step what a replica with b rows is: its share is (b / G) * L, its terms are
divided by the denominators of the whole global batch. Those depend on data, weights and masks alone, so a
first pass finds them before the first piece is trained; TensorFlow drops all of that pass but what they need.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras import layer_states
from mirrored_keras.errors import SetupError, message
from mirrored_keras.forward_pass import loss_of, predictions_of
from mirrored_keras.global_batch import GlobalBatch
from mirrored_keras.logs import states_of_own_rows
from mirrored_keras.replica import collective, private, stand_in, update
from mirrored_keras.replica.rows import first_leaf, rows_of
from mirrored_keras.replica.sharing_out import rows_between
from mirrored_keras.replica.thread_state import own_tensors_kept


def check_micro_batches(value: Any, *, has_own_train_step: bool, randomness: str) -> int:
    """Returns the number of pieces of a step.

    Args:
        value: What was given as `micro_batches`.
        has_own_train_step: Whether the model overrides `train_step`.
        randomness: `compile`'s `randomness`.

    Returns:
        k, at least 1.

    Raises:
        SetupError: It is no positive integer, the model's own step would not know of it, or draws are by row.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SetupError(
            message(
                "`micro_batches` is the number of pieces that a replica's rows are trained in: a positive integer.",
                f"micro_batches={value!r}",
                "model.compile(..., micro_batches=4)",
            )
        )
    if value > 1 and has_own_train_step:
        raise SetupError(
            message(
                "Micro-batches are those of the step of `DistributedModel`; an own `train_step` decides by itself.",
                f"micro_batches={value}, with an own train_step",
                "override compute_loss instead of train_step, or model.compile(..., micro_batches=1)",
            )
        )
    if value > 1 and randomness == "row":
        raise SetupError(
            message(
                "Draws by row are made once for all rows of the global batch, not for pieces of them.",
                f'micro_batches={value}, randomness="row"',
                'model.compile(..., micro_batches=1), or randomness="replica"',
            )
        )
    return value


class _FirstPass(GlobalBatch):
    """Notes what a step sums over the replicas, without doing it."""

    is_piece = True

    def __init__(self, data: Any, model: keras.Model, *, rows: Any, global_rows: Any):
        super().__init__(data)
        self._model, self.rows, self._rows_of_all = model, rows, global_rows
        self.is_whole = False
        self.sums: list[list[tf.Tensor | None]] = []

    def sum_over_replicas(self, values: Sequence[tf.Tensor | None]) -> tuple[Any, list[tf.Tensor | None]]:
        if values:
            self.sums.append(list(values))
        return self._rows_of_all, list(values)


class _Piece(GlobalBatch):
    """A piece of a replica's rows, with sums that are known already."""

    is_piece = True

    def __init__(
        self,
        data: Any,
        model: keras.Model,
        *,
        rows: Any,
        global_rows: Any,
        sums: Sequence[Sequence[tf.Tensor | None]],
    ):
        super().__init__(data)
        self._model, self.rows, self._rows_of_all = model, rows, global_rows
        self.is_whole = False
        self._sums = iter(sums)

    def sum_over_replicas(self, values: Sequence[tf.Tensor | None]) -> tuple[Any, list[tf.Tensor | None]]:
        if not values:
            return self._rows_of_all, []
        sums = next(self._sums, None)
        if sums is None or len(sums) != len(values):
            raise SetupError(
                message(
                    "With micro-batches, a step must ask for the same sums whether it is training or not.",
                    f"{len(values)} sums, of which the pass without training knows nothing",
                    "call GlobalBatch.loss whether or not the model is training, or compile with micro_batches=1",
                )
            )
        return self._rows_of_all, list(sums)

    def mean(self, value: tf.Tensor) -> tf.Tensor:
        raise SetupError(
            message(
                "The mean over the global batch is not known while a piece of it is trained.",
                "GlobalBatch.mean inside a step with micro-batches",
                "use a metric, which adds up over the pieces, or compile with micro_batches=1",
            )
        )


def gradients_in_pieces(model: Any, data: Any, count: int) -> tuple[list[Any], dict[str, Any]]:
    """Returns the gradients of this replica's share, taken piece by piece, and the logs.

    Pieces have ceil(B / k) rows, the last ones fewer or none. Each waits for the gradients of the one before
    it, so that only one piece's activations are in memory. Losses and metrics are brought up to date. What a
    layer computes over the rows of a batch (batch statistics) it computes over a piece.

    Args:
        model: A compiled `DistributedModel`.
        data: One replica's data; may be a row that stands in for none.
        count: k.

    Returns:
        One gradient per trainable variable (not summed over the replicas), and name -> value of every metric.
    """
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    batch = GlobalBatch.current(x)
    global_rows = batch.global_rows
    pieces = list(_pieces(data, batch.rows, count))
    found_sums = _first_pass(model, data, batch.rows, global_rows)
    sums, rows_on_all = _summed(found_sums, [rows for rows, _ in pieces], batch, model)
    gradients: list[Any] = [None] * len(model.trainable_weights)
    logs: dict[str, Any] = {}
    by_own_rows = [*states_of_own_rows(model), *(state.variable for state in layer_states.states_of(model))]
    by_all_rows = layer_states.synchronized_states(model)
    for (rows, part), rows_of_piece in zip(pieces, rows_on_all, strict=True):
        waiting = [g for g in tf.nest.flatten(gradients, expand_composites=True) if g is not None]
        with tf.control_dependencies(waiting):
            part = keras.tree.map_structure(_copied, part)
        before = stand_in.states_of(by_own_rows), stand_in.states_of(by_all_rows)
        part_x, _, _ = keras.utils.unpack_x_y_sample_weight(part)
        piece = _Piece(part_x, model, rows=rows, global_rows=global_rows, sums=sums)
        found, logs = _train_piece(model, part, piece)
        stand_in.restored(by_own_rows, before[0], rows)
        stand_in.restored(by_all_rows, before[1], rows_of_piece)
        found = update.select_where_rows(found, piece.has_rows)
        gradients = [_added(total, gradient) for total, gradient in zip(gradients, found, strict=True)]
    batch.was_shared = batch.loss_was_computed = True
    return gradients, logs


def _first_pass(model, data, rows, global_rows):
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    first = _FirstPass(x, model, rows=rows, global_rows=global_rows)
    # nothing of it may stay, neither in metrics nor in what layers keep; regularisers look for mapped weights
    weights = [(variable, tf.convert_to_tensor(variable.value)) for variable in model.variables]
    with keras.StatelessScope(state_mapping=weights), first, own_tensors_kept(model):
        y_pred = predictions_of(model, x, training=False)
        loss_of(model, x, y, y_pred, sample_weight, training=True)
    return first.sums


def _summed(sums, piece_rows, batch, model):
    # in one reduction: what the losses are divided by, and the rows of every piece on all replicas
    values = [value for group in sums for value in group if value is not None]
    dtype = tf.float64 if any(value.dtype == tf.float64 for value in values) else tf.float32
    with own_tensors_kept(model if batch.num_replicas > 1 else None):
        totals = collective.all_sum_small(tf.stack([tf.cast(value, dtype) for value in [*values, *piece_rows]]))
    totals = tf.unstack(tf.stop_gradient(totals), num=len(values) + len(piece_rows))
    found = iter(totals)
    summed = [[None if value is None else next(found) for value in group] for group in sums]
    return summed, [tf.cast(rows, tf.int32) for rows in found]


def _train_piece(model, data, piece):
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with piece, tf.GradientTape() as tape:
        y_pred = predictions_of(model, x, training=True)
        loss = loss_of(model, x, y, y_pred, sample_weight, training=True)
        share = model.optimizer.scale_loss(piece.share(loss))
    private.loss_tracker(model).add(loss, piece)
    with piece:
        logs = model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    return tape.gradient(share, model.trainable_weights), logs


def _pieces(data, rows, count):
    present = rows_of(first_leaf(data))  # a row that stands in for none included
    size = -(-present // count)
    shapes = [stand_in.row_shape(leaf) for leaf in keras.tree.flatten(data) if leaf is not None]
    for index in range(count):
        start, stop = tf.minimum(index * size, present), tf.minimum((index + 1) * size, present)
        part = keras.tree.map_structure(lambda leaf, a=start, b=stop: _rows_between(leaf, a, b), data)
        of_piece = tf.where(tf.convert_to_tensor(rows) > 0, stop - start, 0)
        yield of_piece, stand_in.filled(part, stop - start, shapes)


def _rows_between(leaf, start, stop):
    return None if leaf is None else rows_between(leaf, start, stop)


def _copied(leaf):
    return None if leaf is None else tf.nest.map_structure(tf.identity, leaf, expand_composites=True)


def _added(total, gradient):
    if total is None or gradient is None:
        return gradient if total is None else total
    if isinstance(total, tf.IndexedSlices) and isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.concat([total.values, gradient.values], 0),
            tf.concat([total.indices, gradient.indices], 0),
            total.dense_shape,
        )
    return tf.convert_to_tensor(total) + tf.convert_to_tensor(gradient)
