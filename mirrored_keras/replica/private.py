"""Every private name of Keras and TensorFlow that this package relies on, and why.

`tests/contract/test_private_names.py` looks each of them up, so that a new version of Keras or
TensorFlow that moves one fails there and not in somebody's training run.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import (
    KerasTensor,
    compute_output_spec,  # runs a function on shapes alone
    get_keras_mask,  # the mask rides on the prediction as a private attribute
)
from keras.src.backend.common.global_state import get_global_attribute, set_global_attribute  # unseeded draws
from keras.src.layers.rnn.dropout_rnn_cell import DropoutRNNCell  # draws the masks of all recurrent cells
from keras.src.models.functional import Functional  # __init__ without rewriting the bases of the class
from keras.src.random.seed_generator import make_default_seed  # the seed of a generator that is given none
from keras.src.trainers.compile_utils import CompileLoss, CompileMetrics  # match losses and metrics to outputs
from keras.src.utils.tracking import DotNotTrackScope  # attributes that are no state of the user
from tensorflow.python.distribute.cross_device_ops import CollectiveAllReduce  # is it the default engine?
from tensorflow.python.distribute.distribute_lib import _get_default_strategy as get_default_strategy

__all__ = [
    "CompileLoss",
    "CompileMetrics",
    "Functional",
    "get_keras_mask",
    "make_default_seed",
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
    ),
    "keras.src.trainers.compile_utils:CompileLoss": ("build", "call"),
    "keras.src.trainers.compile_utils:CompileMetrics": ("build",),
    "keras.src.backend.tensorflow.optimizer:TFOptimizer": (
        # replaced on one optimizer, for the time of one call: the gradients are summed already
        "_all_reduce_sum_gradients",
    ),
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
    ),
    "functional": ("_inputs_struct", "_outputs_struct"),
    "sequential": ("_functional",),
    "compile_loss": ("_flat_losses", "_metrics"),
    "compile_metrics": ("_user_metrics", "_user_weighted_metrics"),
    "function_metric": ("_fn",),
    "optimizer": ("_distribution_strategy", "_trainable_variables"),
    "averaging_optimizer": ("_model_variables_moving_average",),
    "epoch_iterator": ("_distributed_dataset",),
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


def build_from_shapes(model: keras.Model, shapes: Any) -> None:
    """Builds model, metrics, losses and optimizer from objects with `shape` and `dtype`."""
    model._symbolic_build(data_batch=shapes)


def losses_are_built(model: keras.Model) -> bool:
    """Returns whether the compiled losses have met data, after which `build_from_shapes` leaves them alone."""
    return model._compile_loss is not None and model._compile_loss.built


def run_on_shapes(model: keras.Model, shapes: Any) -> None:
    """Runs forward pass and loss on objects with `shape` and `dtype`, computing nothing."""
    symbolic = keras.tree.map_structure(
        lambda leaf: None if leaf is None else KerasTensor(leaf.shape, keras.backend.standardize_dtype(leaf.dtype)),
        shapes,
    )
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(symbolic)
    y_pred = compute_output_spec(model, x, training=False)
    compute_output_spec(model._compute_loss, x, y, y_pred, sample_weight=sample_weight, training=False)


def reduction_method(model: keras.Model) -> str:
    """Returns `distribute_reduction_method`, whose getter fails until it has been set."""
    return getattr(model, "_distribute_reduction_method", None) or "auto"


def all_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns the model and all layers below it."""
    return list(model._flatten_layers())


def layer_states(model: keras.Model) -> list[keras.Variable]:
    """Returns the variables that layers update themselves (moving statistics, counters), kept per replica."""
    states = [v for layer in all_layers(model) for v in layer._non_trainable_variables]
    unique = {id(v): v for v in states if v.aggregation in ("none", None)}
    return list(unique.values())


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


_LOCK = threading.Lock()


@contextlib.contextmanager
def gradients_already_summed(optimizers: Sequence[keras.optimizers.Optimizer]) -> Iterator[None]:
    """Keeps optimizers from what does not work inside a replica, for the time of one `apply`.

    They do not sum gradients once more, and do not branch to overwrite weights by their averages (a branch
    around a sum over replicas); `overwrite_by_averages` does that without one. Attributes are set on the
    instances, and counted because every replica traces in a thread of its own.
    """
    with _LOCK:
        for optimizer in optimizers:
            depth, frequency = optimizer.__dict__.get("_summed", (0, optimizer.ema_overwrite_frequency))
            optimizer.__dict__["_summed"] = (depth + 1, frequency)
            optimizer.__dict__["_all_reduce_sum_gradients"] = _unchanged
            if tf.distribute.has_strategy():
                optimizer.__dict__["ema_overwrite_frequency"] = None
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


def ema_overwrite_frequency(optimizer: keras.optimizers.Optimizer) -> int | None:
    """Returns the option, also while `gradients_already_summed` holds it back."""
    return optimizer.__dict__.get("_summed", (0, optimizer.ema_overwrite_frequency))[1]


def averages_of(optimizer: keras.optimizers.Optimizer) -> list[tuple[Any, Any]]:
    """Returns `(variable, moving average)` pairs of an optimizer that keeps averages."""
    pairs = zip(optimizer._trainable_variables, optimizer._model_variables_moving_average, strict=True)
    return [(variable, average) for variable, average in pairs if average is not None]


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


_REPLACED: dict[tuple[int, str], int] = {}


@contextlib.contextmanager
def replaced_methods(replacements: Sequence[tuple[Any, str, Callable[..., Any]]]) -> Iterator[None]:
    """Replaces methods on single instances while replicas run.

    Counted, because replicas that make a step by hand enter and leave in threads of their own.

    Args:
        replacements: `(instance, name of a method, wrap)`; `wrap` takes the bound method it replaces.

    Yields:
        Nothing.
    """
    keys = [(id(owner), name) for owner, name, _ in replacements]
    with _LOCK:
        for key, (owner, name, wrap) in zip(keys, replacements, strict=True):
            if key not in _REPLACED:
                owner.__dict__[name] = wrap(getattr(owner, name))
            _REPLACED[key] = _REPLACED.get(key, 0) + 1
    try:
        yield
    finally:
        with _LOCK:
            for key, (owner, name, _) in zip(keys, replacements, strict=True):
                _REPLACED[key] -= 1
                if not _REPLACED[key]:
                    del _REPLACED[key], owner.__dict__[name]
