"""Every private name of Keras and TensorFlow that this package relies on, and why.

`tests/contract/test_private_names.py` looks each of them up, so that a new version of Keras or
TensorFlow that moves one fails there and not in somebody's training run.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

# A function run on shapes alone; the mask that rides on the prediction as a private attribute.
from keras.src.backend import KerasTensor, compute_output_spec, get_keras_mask, set_keras_mask
from keras.src.backend.common.global_state import get_global_attribute, set_global_attribute  # unseeded draws
from keras.src.layers.rnn.dropout_rnn_cell import DropoutRNNCell  # draws the masks of all recurrent cells

# HDF5 files of whole models into and out of an open file, and their compile arguments; public calls lose them
from keras.src.legacy.saving.legacy_h5_format import load_optimizer_weights_from_hdf5_group, save_model_to_hdf5
from keras.src.legacy.saving.saving_utils import compile_args_from_training_config as compile_arguments_of_h5
from keras.src.losses.losses import LossFunctionWrapper  # a loss function as an object, as `compile` makes it
from keras.src.models.functional import Functional  # __init__ without rewriting the bases of the class
from keras.src.random.seed_generator import make_default_seed  # the seed of a generator that is given none
from keras.src.saving.saving_lib import NpzIOStore, _save_state  # which variable goes where in a file
from keras.src.saving.serialization_lib import ObjectSharingScope, in_safe_mode  # shared layers stay shared
from keras.src.trainers import data_adapters  # what kind of data `fit` was given
from keras.src.trainers.compile_utils import CompileLoss, CompileMetrics  # match losses and metrics to outputs
from keras.src.trainers.data_adapters import array_slicing  # rows of arrays, frames and sparse tensors by index
from keras.src.utils.tracking import DotNotTrackScope  # attributes that are no state of the user
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph  # what a checkpoint's root holds
from tensorflow.python.distribute.cross_device_ops import CollectiveAllReduce  # is it the default engine?
from tensorflow.python.distribute.distribute_lib import _get_default_strategy as get_default_strategy
from tensorflow.python.eager.context import context as eager_context  # ends collectives that wait for ever
from tensorflow.python.eager.context import global_seed  # do workers shuffle alike?

from mirrored_keras.replica.instances import replaced_methods, replaced_on_instances

__all__ = [
    "CompileLoss",
    "CompileMetrics",
    "DotNotTrackScope",
    "Functional",
    "LossFunctionWrapper",
    "compile_arguments_of_h5",
    "get_keras_mask",
    "global_seed",
    "make_default_seed",
    "save_model_to_hdf5",
    "set_keras_mask",
]

#: owner -> names; owners are resolved by the test.
PRIVATE_NAMES: dict[str, tuple[str, ...]] = {
    "keras.src.models.functional:Functional": ("__init__",),
    "keras.src.models.model:Model": (
        # overridden: stock averages the first batch over the replicas to learn its shapes
        "_maybe_symbolic_build",
        # called: builds model, metrics, losses and optimizer from shapes
        "_symbolic_build",
        # overridden: stock divides added losses by the number of replicas
        "_aggregate_additional_loss",
        # overridden: stock replaces a step's own `loss` by a tracker that nobody updated
        "_get_metrics_result_or_logs",
        # called: `compute_loss` with or without its `training` argument
        "_compute_loss",
        # called: the model and all layers below it
        "_flatten_layers",
        # called: the end of a build
        "_post_build",
    ),
    "keras.src.trainers.compile_utils:CompileLoss": ("build", "call"),
    "keras.src.trainers.compile_utils:CompileMetrics": ("build",),
    "keras.src.backend.tensorflow.optimizer:TFOptimizer": (
        # replaced on one optimizer, for the time of one call: the gradients are summed already
        "_all_reduce_sum_gradients",
        # replaced likewise, where an optimizer accumulates gradients: it branches around a sum over replicas
        "_backend_apply_gradients",
        # called: what that method does at the end of an accumulation
        "_clip_gradients",
        "_apply_weight_decay",
        "_backend_update_step",
        "_get_variable_index",
        "_update_model_variables_moving_average",
        # called: which weights are excluded from weight decay
        "_use_weight_decay",
    ),
    "keras.src.layers.normalization.batch_normalization:BatchNormalization": (
        # overridden, and replaced on synchronised layers while a model runs: stock's statistics ignore masks,
        # count replicas without rows, and lose all digits where the mean is large
        "_moments",
    ),
    "keras.src.backend.tensorflow.core:Variable": (
        # replaced on states of layers during a step: stock sums whole values, not what was added to them
        "_direct_assign",
    ),
    "keras.src.trainers.epoch_iterator:EpochIterator": (
        # replaced on the iterator of a `fit` that is resumed: its passes over the data are counted, and the first
        # epoch is entered where the last process left it
        "_get_iterator",
        "_enumerate_iterator",
    ),
    # rows of arrays by an order of our own
    "keras.src.trainers.data_adapters.array_slicing:TensorflowSparseWrapper": ("__init__",),
    # replaced on one cell, while replicas run: masks of rows out of a draw for the global batch
    "keras.src.layers.rnn.dropout_rnn_cell:DropoutRNNCell": ("_create_dropout_mask",),
}

#: Attributes that only exist on instances; the test builds one and looks.
PRIVATE_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "model": (
        "_distribute_strategy",
        "_compile_loss",
        "_compile_metrics",
        "_loss_tracker",
        "_call_has_training_arg",
        "_losses",
        "_loss_ids",
        "_seed_generators",
        "_non_trainable_variables",
        "_compile_config",
    ),
    "functional": ("_inputs_struct", "_outputs_struct"),
    "sequential": ("_functional",),
    "compile_loss": ("_flat_losses", "_metrics"),
    "compile_metrics": (
        "_user_metrics",
        "_user_weighted_metrics",
        "_flat_metrics",
        "_flat_weighted_metrics",
        "_flatten_y",
    ),
    "function_metric": ("_fn",),
    "function_loss": ("_fn_kwargs",),
    "optimizer": ("_distribution_strategy", "_trainable_variables", "_iterations"),
    "accumulating_optimizer": ("_accumulated_gradients",),
    "averaging_optimizer": ("_model_variables_moving_average",),
    "batch_normalization": ("_reduction_axes",),
    "variable": ("_value",),
    "epoch_iterator": ("_distributed_dataset", "_current_iterator", "_num_batches", "_steps_seen"),
    "array_adapter": ("_inputs", "_num_samples", "_batch_size", "_shuffle"),
}


def strategy_of_model(model: keras.Model) -> tf.distribute.Strategy | None:
    """Returns the strategy in whose scope the model was made; `None` outside any scope."""
    return model._distribute_strategy


def strategy_of_optimizer(optimizer: keras.optimizers.Optimizer) -> tf.distribute.Strategy:
    """Returns the strategy that was current when the optimizer was made."""
    return optimizer._distribution_strategy


def graph_of(model: keras.Model) -> tuple[Any, Any]:
    """Returns inputs and outputs of a functional or sequential model, in their own structure."""
    graph = model if isinstance(model, Functional) else model._functional
    return graph._inputs_struct, graph._outputs_struct


def variables_of(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Returns the variables that an optimizer was built for."""
    return optimizer._trainable_variables


def build_from_specs(model: keras.Model, specs: Any) -> None:
    """Builds model, metrics, losses and optimizer from the specs of a batch."""
    if not _have_composites(specs):
        model._symbolic_build(data_batch=specs)
        return
    # Keras puts dense placeholders in for ragged and sparse tensors, which a model made for those cannot take
    unbuilt = [
        not all(layer.built for layer in model._flatten_layers()),
        model._compile_loss is not None and not model._compile_loss.built,
        model._compile_metrics is not None and not model._compile_metrics.built,
    ]
    if any(unbuilt):
        run_on_specs(model, specs, loss=unbuilt[1], metrics=unbuilt[2])
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    model._post_build()


def losses_are_built(model: keras.Model) -> bool:
    """Returns whether the compiled losses have met data, after which `build_from_specs` leaves them alone."""
    return model._compile_loss is not None and model._compile_loss.built


def run_on_specs(model: keras.Model, specs: Any, *, loss: bool = True, metrics: bool = False) -> None:
    """Runs forward pass, loss and metrics on the specs of a batch, computing nothing."""

    def run() -> None:
        batch = keras.tree.map_structure(_placeholder_of, specs)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        y_pred = model(x, training=False)
        if metrics:
            model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        if loss:
            model._compute_loss(x, y, y_pred, sample_weight=sample_weight, training=False)

    compute_output_spec(run)


def _placeholder_of(spec):
    if spec is None:
        return None
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.compat.v1.sparse_placeholder(spec.dtype, spec.shape)
    if not isinstance(spec, tf.RaggedTensorSpec):
        return tf.compat.v1.placeholder(keras.backend.standardize_dtype(spec.dtype), spec.shape)
    values = tf.compat.v1.placeholder(spec.dtype, [None, *spec.shape[spec.ragged_rank + 1 :]])
    splits = [tf.compat.v1.placeholder(spec.row_splits_dtype, [None]) for _ in range(spec.ragged_rank)]
    return tf.RaggedTensor.from_nested_row_splits(values, splits, validate=False)


def _have_composites(specs):
    return any(isinstance(spec, (tf.RaggedTensorSpec, tf.SparseTensorSpec)) for spec in keras.tree.flatten(specs))


def metric_names(model: keras.Model) -> set[str]:
    """Returns the names of the numbers that a model's metrics log, computing none of them."""
    return set(compute_output_spec(model.get_metrics_result))


def compute_loss(model: keras.Model, **arguments: Any) -> Any:
    """Calls `compute_loss`, without `training` where an override does not take it."""
    return model._compute_loss(**arguments)


def reduction_method(model: keras.Model) -> str:
    """Returns `distribute_reduction_method`, whose getter fails until it has been set."""
    return getattr(model, "_distribute_reduction_method", None) or "auto"


def all_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns the model and all layers below it."""
    return list(model._flatten_layers())


def states_of_layer(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Returns the variables that a layer itself may update (moving statistics, counters), no random seeds."""
    return list(layer._non_trainable_variables)


def local_copy(variable: keras.Variable) -> tf.Variable:
    """Returns this replica's copy of a mirrored variable, in replica context."""
    context = tf.distribute.get_replica_context()
    copies = context.strategy.experimental_local_results(variable._value)
    return copies[int(tf.get_static_value(context.replica_id_in_sync_group)) % len(copies)]


def copy_of(variable: keras.Variable) -> Any:
    """Returns the value of one of this process' copies of a variable, without asking other processes."""
    return tf.distribute.get_strategy().experimental_local_results(variable._value)[0].numpy()


@contextlib.contextmanager
def assigned_locally(variables: Sequence[keras.Variable], note: Callable[[keras.Variable], None]) -> Iterator[None]:
    """Lets assignments to variables reach this replica's copy alone, and notes them, inside the block."""

    def assign(variable, value):
        note(variable)
        if variable.aggregation == "none" or tf.distribute.in_cross_replica_context():
            type(variable)._direct_assign(variable, value)
        else:
            copy = local_copy(variable)
            copy.assign(tf.cast(value, copy.dtype))

    with replaced_on_instances(variables, "_direct_assign", assign):
        yield


def has_stock_moments(layer: keras.layers.Layer) -> bool:
    """Returns whether a layer is a `BatchNormalization` with Keras' own statistics."""
    stock = keras.layers.BatchNormalization
    return isinstance(layer, stock) and type(layer)._moments is stock._moments


def stock_moments(layer: keras.layers.BatchNormalization, inputs: tf.Tensor, mask: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and variance as Keras computes them on one replica without `synchronized`."""
    if mask is None:
        return keras.ops.moments(inputs, axes=reduction_axes(layer))
    return keras.layers.BatchNormalization._moments(layer, inputs, mask)


def reduction_axes(layer: keras.layers.BatchNormalization) -> list[int]:
    """Returns the dimensions that a layer's statistics are taken over."""
    return layer._reduction_axes


@contextlib.contextmanager
def moments_replaced(layers: Sequence[keras.layers.Layer], moments: Callable[..., Any]) -> Iterator[None]:
    """Lets layers take mean and variance from `moments(layer, inputs, mask)` inside the block."""
    with replaced_on_instances(layers, "_moments", moments):
        yield


def added_losses(layer: keras.layers.Layer) -> tuple[list[Any], set[int]]:
    """Returns copies of what `add_loss` has collected in a layer."""
    return list(layer._losses), set(layer._loss_ids)


def restore_added_losses(layer: keras.layers.Layer, losses: tuple[list[Any], set[int]]) -> None:
    """Puts back what `added_losses` returned, into the same containers."""
    layer._losses[:] = losses[0]
    layer._loss_ids.clear()
    layer._loss_ids.update(losses[1])


def call_has_training_argument(model: keras.Model) -> bool:
    """Returns whether the model's `call` takes `training`."""
    return model._call_has_training_arg


def replace_compiled_parts(
    model: keras.Model,
    *,
    loss_tracker: keras.metrics.Mean,
    compile_loss: CompileLoss | None,
    compile_metrics: CompileMetrics | None,
) -> None:
    """Replaces the metric behind `loss` and the containers of losses and metrics, as `compile` sets them.

    Without the scope Keras would track them once more, as metrics of the user.
    """
    with DotNotTrackScope():
        model._loss_tracker = loss_tracker
        if compile_loss is not None:
            model._compile_loss = compile_loss
        if compile_metrics is not None:
            model._compile_metrics = compile_metrics


def replace_metric_function(metric: keras.metrics.MeanMetricWrapper, wrap: Any) -> None:
    """Wraps the function of a metric that Keras made around it."""
    metric._fn = wrap(metric._fn)


def function_of_metric(metric: keras.metrics.MeanMetricWrapper) -> Any:
    """Returns the function that a metric averages."""
    return metric._fn


def function_arguments(wrapper: Any) -> dict[str, Any]:
    """Returns what a loss or metric hands to the function that it was made around."""
    return dict(getattr(wrapper, "_fn_kwargs", None) or {})


def axis_of_loss(loss: keras.losses.Loss) -> Any:
    """Returns the `axis` that Keras hands to the function of a loss; `None` if it hands none."""
    return function_arguments(loss).get("axis")


def metrics_by_output(metrics: CompileMetrics, y_true: Any, y_pred: Any) -> list[tuple[Any, Any, Any]]:
    """Returns `(metric, targets, predictions)` of each metric of a built container, output by output."""
    y_true, y_pred = metrics._flatten_y(y_true), metrics._flatten_y(y_pred)
    return [
        (metric, one_y_true, one_y_pred)
        for groups in (metrics._flat_metrics, metrics._flat_weighted_metrics)
        for group, one_y_true, one_y_pred in zip(groups, y_true, y_pred, strict=False)  # as Keras pairs them
        if group
        for metric in group.metrics
    ]


def loss_tracker(model: keras.Model) -> keras.metrics.Mean:
    """Returns the metric behind the logged `loss`."""
    return model._loss_tracker


def initialize_functional(model: Functional, *args: Any, **kwargs: Any) -> None:
    """Initialises a functional model without rewriting its class's bases.

    `keras.Model.__init__` puts `Functional` among the bases of the class it meets and of all its
    parents, after which no subclass with an own `call` can be made. The two calls are the rest of it.
    """
    keras.Model.__mro__[1].__init__(model)  # the backend's trainer, as in keras.Model.__init__
    Functional.__init__(model, *args, **kwargs)


def is_functional_call(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Returns whether constructor arguments are those of a functional model."""
    from keras.src.models.model import functional_init_arguments

    return functional_init_arguments(args, kwargs)


def are_symbolic(structure: Any) -> bool:
    """Returns whether all leaves are symbolic tensors of Keras, of which there is at least one."""
    leaves = keras.tree.flatten(structure)
    return bool(leaves) and all(isinstance(leaf, KerasTensor) for leaf in leaves)


def element_spec_of(epoch_iterator: Any) -> Any:
    """Returns the element spec of one replica's part of a batch, without drawing a batch."""
    spec = epoch_iterator._distributed_dataset.element_spec
    return keras.tree.map_structure(_spec_of_one_replica, spec)


def _spec_of_one_replica(spec):
    # PerReplicaSpec: one spec per replica; all have the same rank and dtype
    specs = getattr(spec, "_value_specs", None)
    return spec if specs is None else specs[0]


def uses_collective_ops(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether the strategy sums gradients by TensorFlow's default collective ops."""
    return isinstance(getattr(strategy.extended, "_cross_device_ops", None), CollectiveAllReduce)


def is_default_strategy(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether this is the strategy that TensorFlow reports where there is none."""
    return strategy is get_default_strategy()


def cross_device_ops_name(strategy: tf.distribute.Strategy) -> str:
    """Returns the class name of the engine that sums over replicas."""
    return type(getattr(strategy.extended, "_cross_device_ops", None)).__name__


def in_multi_worker_mode(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether replicas of the strategy live in more than one process."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and bool(
        strategy.extended._in_multi_worker_mode()
    )


def abort_collectives(text: str) -> None:
    """Ends all collectives of this process with an error; TensorFlow allows no other afterwards."""
    eager_context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, text)


_LOCK = threading.Lock()


@contextlib.contextmanager
def gradients_already_summed(
    optimizers: Sequence[keras.optimizers.Optimizer], accumulate: Callable[..., None]
) -> Iterator[None]:
    """Keeps optimizers from what does not work inside a replica, for the time of one `apply`.

    They do not sum gradients once more, and do not branch around a sum over replicas: not to overwrite weights
    by their averages (`overwrite_by_averages` does that) nor to accumulate gradients (`accumulate` does).
    Attributes are set on the instances, and counted because every replica traces in a thread of its own.
    """
    with _LOCK:
        for optimizer in optimizers:
            depth, frequency = optimizer.__dict__.get("_summed", (0, optimizer.ema_overwrite_frequency))
            optimizer.__dict__["_summed"] = (depth + 1, frequency)
            optimizer.__dict__["_all_reduce_sum_gradients"] = _unchanged
            if tf.distribute.has_strategy():
                optimizer.__dict__["ema_overwrite_frequency"] = None
                if optimizer.gradient_accumulation_steps:
                    optimizer.__dict__["_backend_apply_gradients"] = functools.partial(accumulate, optimizer)
    try:
        yield
    finally:
        with _LOCK:
            for optimizer in optimizers:
                depth, frequency = optimizer.__dict__["_summed"]
                optimizer.__dict__["_summed"] = (depth - 1, frequency)
                if depth == 1:
                    optimizer.__dict__["ema_overwrite_frequency"] = frequency
                    del optimizer.__dict__["_summed"], optimizer.__dict__["_all_reduce_sum_gradients"]
                    optimizer.__dict__.pop("_backend_apply_gradients", None)


def ema_overwrite_frequency(optimizer: keras.optimizers.Optimizer) -> int | None:
    """Returns the option, also while `gradients_already_summed` holds it back."""
    return optimizer.__dict__.get("_summed", (0, optimizer.ema_overwrite_frequency))[1]


def averages_of(optimizer: keras.optimizers.Optimizer) -> list[tuple[Any, Any]]:
    """Returns `(variable, moving average)` pairs of an optimizer that keeps averages."""
    pairs = zip(optimizer._trainable_variables, optimizer._model_variables_moving_average, strict=True)
    return [(variable, average) for variable, average in pairs if average is not None]


def batches_seen(optimizer: keras.optimizers.Optimizer) -> keras.Variable:
    """Returns the count of global batches; `iterations` counts updates."""
    return optimizer._iterations


def accumulators_of(optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]) -> list[keras.Variable]:
    """Returns the accumulator of every variable's gradient."""
    return [optimizer._accumulated_gradients[optimizer._get_variable_index(v)] for v in variables]


def update_by(optimizer: keras.optimizers.Optimizer, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Clips, decays and updates, as Keras does at the end of an accumulation."""
    gradients = optimizer._clip_gradients(list(gradients))
    optimizer._apply_weight_decay(variables)
    optimizer._backend_update_step(gradients, variables, optimizer.learning_rate)


def uses_weight_decay(optimizer: keras.optimizers.Optimizer, variable: Any) -> bool:
    """Returns whether weight decay of an optimizer reaches a variable."""
    return optimizer._use_weight_decay(variable)


def update_averages(optimizer: keras.optimizers.Optimizer) -> None:
    """Brings the moving averages of the variables up to date."""
    optimizer._update_model_variables_moving_average(optimizer._trainable_variables)


def _unchanged(gradients_and_variables):
    return gradients_and_variables


def seed_generators_of(layer: keras.layers.Layer) -> list[keras.random.SeedGenerator]:
    """Returns the seed generators that a layer holds itself, not those of the layers below it."""
    return list(layer._seed_generators)


_UNSEEDED = "global_seed_generator"


def unseeded_generator() -> keras.random.SeedGenerator | None:
    """Returns this thread's generator of random operations without a seed, if there is one yet."""
    return get_global_attribute(_UNSEEDED)


def set_unseeded_generator(generator: keras.random.SeedGenerator | None) -> None:
    """Sets this thread's generator of random operations without a seed."""
    set_global_attribute(_UNSEEDED, generator)


def mask_drawing_of(layer: keras.layers.Layer) -> tuple[str, Callable[..., Any]] | None:
    """Returns name and method by which a recurrent cell draws its dropout masks; `None` for other layers."""
    return ("_create_dropout_mask", layer._create_dropout_mask) if isinstance(layer, DropoutRNNCell) else None


@contextlib.contextmanager
def compile_config_replaced(model: keras.Model, replace: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[None]:
    """Shows Keras other arguments of `compile` inside the block, and keeps the model's own from being changed."""
    kept = getattr(model, "_compile_config", None)
    if kept is None:
        yield
        return
    own = kept.config
    kept.config = replace(dict(own))
    try:
        yield
    finally:
        kept.config = own


def compile_argument(model: keras.Model, name: str) -> Any:
    """Returns an argument that a compiled model was compiled with."""
    return model._compile_config.config.get(name)


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """Returns the arguments, as objects, that a compiled model was compiled with."""
    return dict(model._compile_config.config)


def serialized_model(model: keras.Model) -> dict[str, Any]:
    """Returns the configuration that `.keras` files hold."""
    with ObjectSharingScope():
        return keras.saving.serialize_keras_object(model)


def model_from_serialized(config: dict[str, Any], custom_objects: Any, safe_mode: bool) -> keras.Model:
    """Makes a model from the configuration that `.keras` files hold."""
    with ObjectSharingScope():
        return keras.saving.deserialize_keras_object(config, custom_objects=dict(custom_objects), safe_mode=safe_mode)


def variables_in_file(model: keras.Model) -> dict[str, dict[str, Any]]:
    """Returns group -> name -> weight, as Keras would write them into a `.weights.h5` file of the model now."""
    store = NpzIOStore("never written", mode="w")  # it keeps what it is given until it is closed
    optimizer = {id(getattr(model, "optimizer", None))}  # it would copy all of its variables
    _save_state(model, weights_store=store, assets_store=None, inner_path="", visited_saveables=optimizer)
    return {"" if path == "__root__" else path: entry for path, entry in store.contents.items()}


def roots_of_checkpoint(prefix: str) -> list[str]:
    """Returns the names of the objects that a `tf.train.Checkpoint` was given, or of the attributes of its root."""
    # a variable that an optimizer knows too may have its only name from there, so names of variables do not tell
    graph = TrackableObjectGraph()
    graph.ParseFromString(tf.train.load_checkpoint(prefix).get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH"))
    return [child.local_name for child in graph.nodes[0].children]


def optimizer_weights_of_h5(file: Any) -> list[Any]:
    """Returns the arrays of an optimizer from an open HDF5 file of a whole model."""
    return [dataset[()] for dataset in load_optimizer_weights_from_hdf5_group(file)]


def runs_code_of_files() -> bool:
    """Returns whether `keras.config.enable_unsafe_deserialization` was called in this process."""
    return in_safe_mode() is False


@contextlib.contextmanager
def fit_observed(
    model: keras.Model, *, iterator: Callable[[Any], None], epoch_logs: Callable[[Any], Any]
) -> Iterator[None]:
    """Hands out what `fit` keeps to itself, inside the block.

    Args:
        model: The model.
        iterator: Gets the iterator over the batches of training, before the first epoch.
        epoch_logs: Gets the logs of the last step of an epoch or evaluation, and returns those to go on with.

    Yields:
        Nothing.
    """
    seen: list[bool] = []

    def building(build):
        def maybe_symbolic_build(iterator_of_data=None, data_batch=None, **arguments):
            found = arguments.get("iterator", iterator_of_data)
            build(iterator=found, data_batch=data_batch)
            if found is not None and not seen:
                seen.append(True)
                iterator(found)

        return maybe_symbolic_build

    def reading(read):
        return lambda logs: read(epoch_logs(logs))

    with replaced_methods(
        [(model, "_maybe_symbolic_build", building), (model, "_get_metrics_result_or_logs", reading)]
    ):
        yield


def kind_of_data(adapter: Any) -> str:
    """Returns "arrays", "dataset", "py_dataset" or "stream": what `fit` reads its batches from."""
    if isinstance(adapter, data_adapters.ArrayDataAdapter):
        return "arrays"
    if isinstance(adapter, data_adapters.PyDatasetAdapter):
        return "py_dataset"
    return "dataset" if isinstance(adapter, data_adapters.TFDatasetAdapter) else "stream"


def array_options(adapter: Any) -> dict[str, Any]:
    """Returns number of rows, batch size and shuffling of arrays."""
    return {"rows": int(adapter._num_samples), "batch_size": int(adapter._batch_size), "shuffle": adapter._shuffle}


def dataset_of_arrays(adapter: Any, indices: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the rows of a `fit`'s arrays, batch by batch, from a dataset of vectors of indices; as Keras does."""
    arrays = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")
    arrays = keras.tree.lists_to_tuples(arrays)

    def taken(array, indices):
        if isinstance(array, array_slicing.TensorflowSparseWrapper):
            return array_slicing.slice_tensorflow_sparse_wrapper(array, indices)
        if isinstance(array, (list, tuple, dict)):
            return None
        return tf.gather(array, indices, axis=0) if tf.is_tensor(array) else array

    def batch(indices, arrays):
        return keras.tree.traverse(functools.partial(taken, indices=indices), arrays)

    pairs = tf.data.Dataset.zip((indices, tf.data.Dataset.from_tensors(arrays).repeat()))
    return pairs.map(batch, num_parallel_calls=tf.data.AUTOTUNE)


def replace_iteration(epoch_iterator: Any, *, passes: Any, enumerated: Callable[[Callable], Any]) -> None:
    """Lets an iterator of `fit` take every pass over the data from `iter(passes)`, and wraps what counts its steps."""
    epoch_iterator.__dict__["_get_iterator"] = lambda: passes
    epoch_iterator.__dict__["_enumerate_iterator"] = functools.partial(enumerated, epoch_iterator._enumerate_iterator)


def iteration_of(epoch_iterator: Any) -> dict[str, Any]:
    """Returns what an iterator of `fit` knows between two epochs: batches per pass, and how many of them were seen."""
    return {"num_batches": epoch_iterator._num_batches, "steps_seen": epoch_iterator._steps_seen}


def set_iteration(epoch_iterator: Any, iteration: dict[str, Any], current: Any) -> None:
    """Sets what `iteration_of` returned, and the pass that is under way."""
    epoch_iterator._num_batches = iteration["num_batches"]
    epoch_iterator._steps_seen = iteration["steps_seen"]
    epoch_iterator._current_iterator = current


def distributed_dataset_of(epoch_iterator: Any) -> Any:
    """Returns the dataset that an iterator of `fit` makes its passes over."""
    return epoch_iterator._distributed_dataset
