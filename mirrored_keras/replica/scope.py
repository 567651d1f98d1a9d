"""What must be made inside the strategy's scope, and which rule was broken when it was not."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.errors import SetupError, message
from mirrored_keras.replica import private, update

_RIGHT_ORDER = (
    "with strategy.scope():\n"
    "    model = DistributedModel(inputs, outputs)\n"
    "    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=..., metrics=[...])\n"
    "model.fit(...)"
)


#: Strategies of TensorFlow that are refused, and why.
_REFUSED = {
    "ParameterServerStrategy": "parameter servers train asynchronously, so that the result depends on who comes first",
    "CentralStorageStrategy": "metrics that replicas share in one place are summed once per replica",
    "TPUStrategy": "nothing of it was ever tested on a TPU",
}


def check_strategy(strategy: tf.distribute.Strategy) -> None:
    """Refuses strategies under which the maths of one replica cannot be promised.

    Args:
        strategy: The model's.

    Raises:
        SetupError: It is one of these.
    """
    names = [kind.__name__.removesuffix("V1").removesuffix("V2") for kind in type(strategy).__mro__]
    refused = [name for name in names if name in _REFUSED]
    if refused:
        raise SetupError(
            message(
                "Training equals that of one replica under `MirroredStrategy`, `MultiWorkerMirroredStrategy` and "
                "`OneDeviceStrategy`; other strategies are refused.",
                f"{refused[0]}: {_REFUSED[refused[0]]}",
                "mirrored_strategy() on one machine, mirrored_keras.workers.multi_worker_strategy() on several",
            )
        )


def check_compile(model: keras.Model, *, optimizer: Any, metrics: Any, jit_compile: Any = False) -> None:
    """Refuses optimizers and metrics that were made under another strategy than the model.

    Args:
        model: The model being compiled.
        optimizer: `compile`'s optimizer, an object or a name.
        metrics: `compile`'s metrics, in any structure.
        jit_compile: `compile`'s `jit_compile`.

    Raises:
        SetupError: An object's variables would not be mirrored like the model's, or XLA is asked for.
    """
    check_model(model)
    strategy = model.distribute_strategy
    check_strategy(strategy)
    if isinstance(optimizer, keras.optimizers.Optimizer):
        for part in update.inner_optimizers(optimizer):
            if private.strategy_of_optimizer(part) is not strategy:
                raise SetupError(
                    message(
                        "An optimizer must be made inside the scope of the strategy that its model was made in.",
                        f"optimizer={type(part).__name__} made under {_name(private.strategy_of_optimizer(part))}, "
                        f"model made under {_name(strategy)}",
                        _RIGHT_ORDER,
                    )
                )
    if strategy.num_replicas_in_sync == 1:
        return
    if jit_compile is True:
        raise SetupError(
            message(
                "XLA compiles for one device; a step of several replicas touches the variables of all of them.",
                f"jit_compile=True, replicas={strategy.num_replicas_in_sync}",
                'model.compile(..., jit_compile="auto")',
            )
        )
    for metric in keras.tree.flatten(metrics):
        if isinstance(metric, keras.metrics.Metric):
            _check_variables(metric.variables, strategy, f"metric {metric.name!r}", fix=_RIGHT_ORDER)


def check_model(model: keras.Model) -> None:
    """Refuses a model whose weights are not those of the current strategy.

    Args:
        model: The model about to be compiled or run.

    Raises:
        SetupError: It was made outside the scope, under another strategy, from layers made outside, or
            the call comes from inside a replica.
    """
    if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
        raise SetupError(
            message(
                "A model is compiled and run from outside its replicas; inside one it would start a run per replica.",
                "called inside strategy.run(...)",
                "model.fit(...) outside strategy.run, or model.train_step(data) inside",
            )
        )
    made_under = private.strategy_of_model(model)
    current = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    if (
        current is not None
        and made_under is not current
        and (made_under is not None or current.num_replicas_in_sync > 1)
    ):
        raise SetupError(
            message(
                "A model must be made inside the scope of the strategy that runs it: its weights are one copy per "
                "replica from the start.",
                f"model={model.name!r} made under {_name(made_under)}, run under {_name(current)}",
                _RIGHT_ORDER,
            )
        )
    if made_under is not None and made_under.num_replicas_in_sync > 1:
        check_weights(model, made_under)


def check_callbacks(model: keras.Model, callbacks: Sequence[Any]) -> None:
    """Refuses callbacks of Keras that fail on mirrored variables.

    Args:
        model: The model about to be trained.
        callbacks: Single callbacks.

    Raises:
        SetupError: There is an `OrbaxCheckpoint`, whose first act is a conversion that TensorFlow refuses.
    """
    orbax = getattr(keras.callbacks, "OrbaxCheckpoint", None)  # newer than the oldest Keras here
    if private.strategy_of_model(model) is None or orbax is None:
        return
    if any(isinstance(callback, orbax) for callback in callbacks):
        raise SetupError(
            message(
                "`OrbaxCheckpoint` cannot read the variables of a strategy.",
                f"callbacks with an OrbaxCheckpoint, model made under {_name(private.strategy_of_model(model))}",
                'keras.callbacks.ModelCheckpoint("model.keras"), or keras.callbacks.BackupAndRestore("backup")',
            )
        )


def check_trainable(model: keras.Model) -> None:
    """Refuses to train weights that became trainable after the optimizer was built for the others.

    Args:
        model: A compiled model about to be trained.

    Raises:
        SetupError: Names the first such weight; or the optimizer was built for no weight at all.
    """
    optimizer = model.optimizer
    if optimizer is None or not optimizer.built:
        return
    known = {id(variable) for variable in private.variables_of(optimizer)}
    if not known and model.trainable_variables:
        raise SetupError(
            message(
                "An optimizer is built for the weights that it trains; `keras.models.load_model` of an .h5 file "
                "builds it for none, and drops its state.",
                f"optimizer={optimizer.name!r} with 0 weights, model={model.name!r} with "
                f"{len(model.trainable_variables)}",
                "mirrored_keras.load_model(path), or model.compile(...) to start with a new optimizer",
            )
        )
    if model.distribute_strategy.num_replicas_in_sync == 1:
        return
    for variable in model.trainable_variables:
        if id(variable) not in known:
            raise SetupError(
                message(
                    "`compile` fixes which weights an optimizer trains; "
                    "a layer was made trainable, or attached, after it.",
                    f"variable={variable.path!r}, optimizer={optimizer.name!r}",
                    "with strategy.scope():\n"
                    "    layer.trainable = True\n"
                    "    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=..., metrics=[...])",
                )
            )


def check_weights(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Refuses a model with weights that were made outside the strategy's scope.

    Args:
        model: The model.
        strategy: The strategy that is to run it.

    Raises:
        SetupError: Names the first such weight.
    """
    fix = (
        "with strategy.scope():\n"
        "    base = keras.models.clone_model(pretrained)      # or make it here in the first place\n"
        "    model = DistributedModel.from_model(base)\n"
        "base.set_weights(pretrained.get_weights())"
    )
    _check_variables(model.weights, strategy, f"model {model.name!r}", fix=fix)


def _check_variables(variables, strategy, owner, *, fix):
    for variable in variables:
        if not strategy.extended.variable_created_in_scope(getattr(variable, "value", variable)):
            raise SetupError(
                message(
                    "Every layer and metric must be made inside the scope of the strategy, pre-trained ones too.",
                    f"variable={variable.path!r} of {owner}, made outside the scope of {_name(strategy)}",
                    fix,
                )
            )


def _name(strategy):
    if strategy is None or private.is_default_strategy(strategy):
        return "no strategy"
    return f"{type(strategy).__name__} over {strategy.num_replicas_in_sync} replicas"
