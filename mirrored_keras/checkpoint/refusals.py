"""What cannot be saved whole is refused, or warned about, before anything is written."""

import inspect
import json
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras.checkpoint import doubtful_layers
from mirrored_keras.errors import CheckpointError, SetupError, message
from mirrored_keras.replica import private

_GRAPHS = (keras.Sequential, private.Functional)


def check_context(function: str, strategy: tf.distribute.Strategy | None = None) -> None:
    """Refuses to read or write a file where that would happen once per replica, or once per trace.

    Args:
        function: The name of the public function.
        strategy: Whose variables are read or made, if that is known.

    Raises:
        CheckpointError: The call comes from inside a replica or a `tf.function`.
        SetupError: The scope of another strategy is open.
    """
    in_replica = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
    if in_replica or not tf.executing_eagerly():
        raise CheckpointError(
            message(
                "Files are written and read once, outside the replicas and outside graphs.",
                f"{function} called inside {'a replica (strategy.run)' if in_replica else 'a tf.function'}",
                f"{function}(model, path) after strategy.run(...) has returned, or in a callback",
            )
        )

    current = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    if strategy is not None and current is not None and current is not strategy:
        raise SetupError(
            message(
                "Files are written and read outside the scope of other strategies.",
                f"{function} for {type(strategy).__name__} over {strategy.num_replicas_in_sync} replicas, inside the "
                f"scope of one over {current.num_replicas_in_sync}",
                f"{function}(...) below `with strategy.scope():`, not in it",
            )
        )


def is_graph(model: keras.Model) -> bool:
    """Returns whether a model is functional or sequential, so that its layers are in its configuration.

    Args:
        model: The model.
    """
    return isinstance(model, _GRAPHS)


def is_stock(model: keras.Model) -> bool:
    """Returns whether a model's class is one of Keras' own functional or sequential classes.

    Args:
        model: The model.
    """
    return type(model) in _GRAPHS


def check_savable(model: Any, path: str) -> None:
    """Refuses a model that could not be made again from its file; warns about layers that need a word to load.

    Args:
        model: The model.
        path: The file to be written.

    Raises:
        CheckpointError: With the reason and the alternative.
    """
    check_built(model)
    if path.endswith(".weights.h5"):
        raise refused(
            "A name that ends with .weights.h5 is that of weights alone.",
            f"path={path!r} for a whole model",
            'save_weights(model, path), or save_model(model, "model.h5")',
        )
    if not is_graph(model):
        _check_subclass(model, path)
    _check_compiled(model)
    if not path.endswith(".keras"):
        _check_dtypes(model)
        _check_no_files(model)
    doubtful_layers.warn_of_merged(model)
    doubtful_layers.warn_of_frozen(model)
    doubtful_layers.warn_of_unread(model, in_hdf5=not path.endswith(".keras"))


def check_built(model: Any) -> None:
    """Refuses what has no weights yet.

    Args:
        model: What is to be saved, or to take weights.

    Raises:
        CheckpointError: It is no Keras model, or it is not built.
    """
    if not isinstance(model, keras.Model):
        raise refused(
            "What is saved and restored is a Keras model.", f"model of {type(model)}", "save_model(model, path)"
        )
    if not model.built:
        raise refused(
            "A model has weights once it is built.",
            f"model={model.name!r}, not built",
            "model.build(input_shape), or model(batch) once, inside the scope",
        )


def config_of(model: keras.Model) -> dict[str, Any]:
    """Returns `model.get_config()`, or says why there is none.

    Args:
        model: A subclassed model.

    Raises:
        CheckpointError: The arguments of `__init__` cannot be written down.
    """
    try:
        return model.get_config()
    except (NotImplementedError, TypeError, ValueError) as error:
        raise refused(
            "A subclassed model is made again from `get_config`.",
            f"model={model.name!r} of class {type(model).__name__}: {' '.join(str(error).split())[:200]}",
            _alternatives(model),
        ) from error


def _check_subclass(model, path):
    if not path.endswith(".keras"):
        raise refused(
            "A whole-model HDF5 file holds the layers of functional and sequential models; the code of a class is in "
            "no file.",
            f"model={model.name!r} of class {type(model).__name__}, path={path!r}",
            'save_model(model, "model.keras"), or save_weights(model, "model.weights.h5")',
        )
    config = config_of(model)
    if type(model).get_config is keras.Model.get_config:
        _check_arguments(model, config)
    if type(model).from_config.__func__ is keras.Model.from_config.__func__:
        try:
            inspect.signature(type(model)).bind(**config)
        except TypeError as error:
            raise refused(
                "A subclassed model is made again by calling its class with what `get_config` returns.",
                f"class {type(model).__name__}, get_config() with {sorted(config)}: {error}",
                _alternatives(model),
            ) from error


def _check_arguments(model, config):
    # `keras.Model` forgets what its class was called with, and writes down the defaults
    for name, value in config.items():
        own = getattr(model, name, value)
        if isinstance(value, (bool, int, float, str)) and type(own) is type(value) and own != value:
            raise refused(
                "A subclassed model is made again by calling its class with what `get_config` returns.",
                f"class {type(model).__name__}, get_config() with {name}={value!r}, model.{name}={own!r}",
                f"class {type(model).__name__}(DistributedModel), or {_alternatives(model)}",
            )


def _check_compiled(model):
    try:
        json.dumps(model.get_compile_config(), default=str)
    except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
        raise refused(
            "What `compile` was given is written down, so it must be something that can be.",
            f"model={model.name!r}: {type(error).__name__}: {' '.join(str(error).split())[:200]}",
            "a function or class with @keras.saving.register_keras_serializable(); or save_weights(model, path)",
        ) from error


def _check_no_files(model):
    for layer in private.all_layers(model):
        if hasattr(layer, "save_assets") and not layer.get_config().get("vocabulary"):
            raise refused(
                "HDF5 files of whole models hold numbers, and no vocabularies or other files of layers.",
                f"layer={layer.name!r} of class {type(layer).__name__}",
                'save_model(model, "model.keras")',
            )


def _check_dtypes(model):
    for variable in model.variables:
        if variable.dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"):
            raise refused(
                "HDF5 files of whole models hold the types of NumPy.",
                f"variable={variable.path!r} of type {variable.dtype}",
                'save_model(model, "model.keras")',
            )


def _alternatives(model):
    return (
        f"add to {type(model).__name__}:\n"
        "    def get_config(self):\n"
        '        return {**super().get_config(), "units": self.units}     # every argument of __init__\n'
        'or save_weights(model, "model.weights.h5") and load_weights into a model made by your code'
    )


def refused(rule: str, received: str, fix: str) -> CheckpointError:
    """Returns the error of a refusal.

    Args:
        rule: As for `errors.message`.
        received: As there.
        fix: As there.

    Returns:
        The error.
    """
    return CheckpointError(message(rule, received, fix))
