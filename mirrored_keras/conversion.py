"""Any `keras.Model` as a `DistributedModel`: the same layers and weights, another step."""

from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.errors import SetupError, message
from mirrored_keras.model import DistributedModel
from mirrored_keras.replica import private, scope

_STEPS = ("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics")


@keras.saving.register_keras_serializable(package="mirrored_keras")
class WrappedModel(DistributedModel):
    """A model without a graph of its own (subclassed, or not built yet) inside a `DistributedModel`.

    Args:
        model: The model whose `call` is used; its layers and weights are this model's.
        **kwargs: `name`, `trainable`, `dtype` as for any `keras.Model`.

    Example:
        >>> import keras
        >>> from mirrored_keras import DistributedModel
        >>> model = DistributedModel.from_model(keras.Sequential([keras.layers.Dense(1)]))
        >>> type(model).__name__
        'WrappedModel'
    """

    def __init__(self, model: keras.Model, **kwargs: Any):
        super().__init__(**kwargs)
        self.model = model

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Calls the wrapped model.

        Args:
            inputs: Its inputs.
            training: Handed on if it takes it.

        Returns:
            Its outputs.
        """
        if private.call_has_training_argument(self.model):
            return self.model(inputs, training=training)
        return self.model(inputs)

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration, the wrapped model's included."""
        return {"name": self.name, "model": keras.saving.serialize_keras_object(self.model)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "WrappedModel":
        """Makes the model that `get_config` described.

        Args:
            config: The configuration.
            custom_objects: Names to classes, as for any Keras object.

        Returns:
            A new model.
        """
        inner = keras.saving.deserialize_keras_object(config["model"], custom_objects=custom_objects)
        return cls(inner, name=config["name"])


def distribute_model(
    model: keras.Model, cls: type[DistributedModel] = DistributedModel, *, compiled: bool = False
) -> DistributedModel:
    """Converts a model; see `DistributedModel.from_model`.

    Args:
        model: Any `keras.Model`.
        cls: The class of the result.
        compiled: Whether the result is compiled as `model` is.

    Returns:
        A model of class `cls` with the same layers and weights.

    Raises:
        SetupError: `model` is none, has steps of its own, or was made outside the current scope.
    """
    if not isinstance(model, keras.Model):
        raise SetupError(
            message(
                "`from_model` takes a `keras.Model`.",
                f"model={model!r} (of type {type(model).__name__})",
                "DistributedModel.from_model(keras.Sequential([...]))",
            )
        )
    if isinstance(model, cls):
        return model
    _check_own_steps(model)
    if tf.distribute.has_strategy() and tf.distribute.get_strategy().num_replicas_in_sync > 1:
        scope.check_weights(model, tf.distribute.get_strategy())
    made = _made(model, cls)
    if compiled and model.compiled:
        # the objects themselves: own functions need not be registered, and the optimizer keeps its state
        scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        arguments = {**private.compile_arguments(model), "optimizer": model.optimizer, "auto_scale_loss": scaled}
        made.compile(**arguments)
    return made


def _made(model, cls):
    if _has_graph(model):
        inputs, outputs = private.graph_of(model)
        return cls(inputs, outputs, name=model.name)
    if cls is DistributedModel:
        return WrappedModel(model, name=model.name)
    return type(cls.__name__, (WrappedModel, cls), {"__module__": cls.__module__})(model, name=model.name)


def _has_graph(model):
    return isinstance(model, (keras.Sequential, private.Functional)) and model.built and bool(_inputs(model))


def _inputs(model):
    try:
        return model.inputs
    except (AttributeError, ValueError):
        return None  # a Sequential that was built by calling it on data


def _check_own_steps(model):
    if isinstance(model, DistributedModel):
        return
    own = [name for name in _STEPS if getattr(type(model), name) is not getattr(keras.Model, name)]
    if own:
        raise SetupError(
            message(
                "`from_model` keeps a model's layers, not its own steps, which would silently be lost.",
                f"model={type(model).__name__}, which overrides {', '.join(own)}",
                f"class {type(model).__name__}(mirrored_keras.DistributedModel): ...",
            )
        )
