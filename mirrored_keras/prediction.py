"""Runs `predict_step` on every replica and puts the rows back in order."""

import functools
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras import layer_states, randomness
from mirrored_keras.batch_norm import sound_statistics
from mirrored_keras.execution import batch_of, local_rows
from mirrored_keras.replica import feeding, splitting, stand_in, workers
from mirrored_keras.replica.rows import check_alike, difference_named, first_leaf, rows_of
from mirrored_keras.replica.watchdog import watched
from mirrored_keras.step import totals


class PredictRunner:
    """Turns `predict_step` into a function of a list of global batches.

    Outputs of the replicas are concatenated in replica order, which is the order of the rows. An output
    that is one number per batch is averaged over the rows of the global batch. Where the batch decides how
    wide an output is, its replicas may differ, and it is ragged.

    Args:
        model: The model; read for its strategy, its `predict_step` and its flags.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self._may_be_ragged: Any = None  # for each output; known after tracing

        @tf.autograph.experimental.do_not_convert
        def on_data(data):
            return self._run(data)

        self._on_data = on_data if model.run_eagerly else tf.function(on_data, reduce_retracing=True)

    def __call__(self, batches: list[Any]) -> Any:
        """Predicts several global batches.

        Args:
            batches: Tuples `(x,)` (or `(x, y, sample_weight)`), split over the replicas or not.

        Returns:
            The structure of the model's outputs, the rows of all batches concatenated.
        """
        strategy = self._model.distribute_strategy
        with difference_named(), watched(strategy, "a step of `predict`"):
            outputs = [self._on_data(splitting.split_batch(strategy, batch)) for batch in batches]
        if len(outputs) == 1:
            return outputs[0]
        return keras.tree.map_structure(lambda *parts: _concatenate(parts), *outputs)

    def _run(self, data):
        model = self._model
        strategy = model.distribute_strategy
        data = feeding.none_for_missing(data)
        check_alike(strategy, data, tf.constant(0))
        fill = stand_in.applies_to(model, data)
        row_shapes = stand_in.row_shapes(strategy, data) if fill else []
        rows_of_replicas = local_rows(strategy, data)

        def on_replica(data):
            rows = rows_of(first_leaf(data))
            data = feeding.in_own_memory(stand_in.filled(data, rows, row_shapes) if fill else data)
            x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
            batch = batch_of(x, rows, model, rows_of_replicas)
            with layer_states.kept_alike(model, rows), batch, randomness.on_replica(model, batch, x):
                outputs = model.predict_step(data)
            return stand_in.first_rows(outputs, rows) if fill else outputs, tf.convert_to_tensor(rows)

        with sound_statistics(model), randomness.on_all_replicas(model):
            outputs, rows = strategy.run(on_replica, args=(data,))
        everywhere = functools.partial(workers.values_of_all_replicas, strategy)
        rows = everywhere(rows)
        local = strategy.experimental_local_results
        self._may_be_ragged = keras.tree.map_structure(
            lambda value: not workers.are_several(strategy) and bool(_last_open_dimension(local(value))), outputs
        )
        return keras.tree.map_structure(lambda value: _of_all_replicas(everywhere(value), rows), outputs)

    def dense_where_possible(self, outputs: Any) -> Any:
        """Makes arrays of predictions that are ragged only because replicas might have differed in width.

        Args:
            outputs: What Keras made of the predictions of all batches.

        Returns:
            The same structure. Rows of different widths stay ragged, and so do ragged predictions of the model.
        """

        def dense(output, may_be_ragged):
            return _dense_where_uniform(output) if may_be_ragged else output

        return keras.tree.map_structure(dense, outputs, self._may_be_ragged)


def _of_all_replicas(values, rows):
    if len(values) == 1:
        return values[0]
    if isinstance(values[0], tf.Tensor) and values[0].shape.rank == 0:
        return totals.mean_of_replicas(values, rows)
    last = _last_open_dimension(values)
    if last:
        values = [tf.RaggedTensor.from_tensor(value, ragged_rank=last) for value in values]
    return _concatenate(values)


def _last_open_dimension(values):
    # a dimension that a batch decides, like its longest row, is another one on each replica
    shapes = [value.shape for value in values]
    if not isinstance(values[0], tf.Tensor) or shapes[0].rank < 2:
        return 0
    inner = [{shape[index] for shape in shapes} for index in range(1, shapes[0].rank)]
    return max((index for index, sizes in enumerate(inner, 1) if None in sizes or len(sizes) > 1), default=0)


def _concatenate(values):
    if isinstance(values[0], tf.SparseTensor):
        return tf.sparse.concat(axis=0, sp_inputs=list(values))
    if values[0].shape.rank == 0:
        return tf.stack(values)
    return tf.concat(values, axis=0)


def _dense_where_uniform(outputs):
    if not isinstance(outputs, tf.RaggedTensor):
        return outputs
    shape = outputs.bounding_shape()
    if tf.reduce_prod(shape) != tf.size(outputs.flat_values, out_type=shape.dtype):
        return outputs
    return tf.reshape(outputs.flat_values, shape)
