"""Loads models of our files and of plain Keras' into the scope of a strategy."""

import contextlib
import logging
import os
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras import DistributedModel
from mirrored_keras.checkpoint import inspection, refusals
from mirrored_keras.checkpoint.contents import restore_random_state
from mirrored_keras.checkpoint.h5_file import load_h5
from mirrored_keras.checkpoint.optimizer_state import (
    LOST_STATE,
    check_optimizer_restored,
    facts_of,
    optimizer_shapes,
    restore_optimizer,
)
from mirrored_keras.errors import CheckpointError, MirroredKerasError, message
from mirrored_keras.replica import private

_LOG = logging.getLogger(__name__)


def load_model(
    path: str | os.PathLike[str],
    strategy: tf.distribute.Strategy | None = None,
    *,
    custom_objects: Mapping[str, Any] | None = None,
    compile: bool = True,  # the name that `keras.models.load_model` has for it
    safe_mode: bool = True,
    verify: bool = True,
) -> keras.Model:
    """Loads a whole model, mirrored over the replicas of a strategy and ready to go on training.

    May be called anywhere outside the replicas. The model that was saved on R replicas, or on none, goes on on any
    number of them. A functional or sequential model that plain Keras saved becomes a `DistributedModel` over the
    same layers.

    Args:
        path: A `.keras`, `.h5` or `.hdf5` file of `save_model`, of `model.save`, or of plain Keras.
        strategy: Where the model is to live. Without it, the strategy whose scope is open; without one, a plain model
            on one device.
        custom_objects: Name -> class or function, for what is not registered.
        compile: Whether to compile it as it was, with its optimizer's state.
        safe_mode: Whether code in the file is refused. Pass False only for files that you trust like a program.
        verify: Whether the checksum is compared; without it, an edited file can be read.

    Returns:
        The model.

    Raises:
        CheckpointError: The file is damaged, unsafe, no model, or needs classes that are not known; or the
            call comes from inside a replica.
        SetupError: The scope of another strategy is open.
        FileNotFoundError: There is no such file.

    Example:
        >>> import keras, os, tempfile
        >>> from mirrored_keras import load_model, mirrored_strategy
        >>> plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        >>> path = os.path.join(tempfile.mkdtemp(), "model.keras")
        >>> plain.save(path)
        >>> load_model(path, strategy=mirrored_strategy(1)).distribute_strategy.num_replicas_in_sync
        1
    """
    refusals.check_context("load_model", strategy)
    name = inspection.check_path(path)
    _check_safe_mode(safe_mode)
    shapes: dict[str, tuple[int, ...]] = {}
    extra = inspection.check_file(name, verify=verify, shapes=shapes)
    objects = dict(custom_objects or {})
    with contextlib.nullcontext() if strategy is None else strategy.scope(), errors_explained(name):
        if name.endswith(".keras"):
            with warnings.catch_warnings():
                # told by the numbers below; an optimizer that never ran has no state to lose
                warnings.filterwarnings("ignore", message=LOST_STATE)
                model = keras.saving.load_model(name, custom_objects=objects, compile=compile, safe_mode=safe_mode)
            if compile:
                _check_or_restore_optimizer(model, extra, name, shapes)
        else:
            model = load_h5(name, extra, custom_objects=objects, compiled=compile, safe_mode=safe_mode)
        if refusals.is_stock(model):
            model = _distributed(model)
        restore_random_state(model, extra)
    _say_where(name, model, extra)
    return model


def _check_or_restore_optimizer(model, extra, name, shapes):
    facts = (extra or {}).get("optimizer")
    if facts is not None and facts != facts_of(model):
        restore_optimizer(model, extra, name)
    else:
        check_optimizer_restored(getattr(model, "optimizer", None), optimizer_shapes(shapes), name)


def _distributed(model):
    made = DistributedModel.from_model(model)
    if model.compiled:
        arguments = keras.saving.deserialize_keras_object(model.get_compile_config())
        made.compile(**{**arguments, "optimizer": model.optimizer})
    return made


def _check_safe_mode(safe_mode):
    if safe_mode and private.runs_code_of_files():
        raise CheckpointError(
            message(
                "Loading runs no code of a file unless it is asked to, and this process has asked Keras to, for all "
                "files.",
                "safe_mode=True after keras.config.enable_unsafe_deserialization()",
                "remove that call, or load_model(path, safe_mode=False) for a file that you trust like a program",
            )
        )


@contextlib.contextmanager
def errors_explained(path: str):
    """Turns what Keras raises, and what it only warns about, into errors that name the file and the way out.

    Args:
        path: The file that is read inside the block.

    Yields:
        Nothing.
    """
    try:
        yield
    except MirroredKerasError:
        raise
    except Exception as error:  # of Keras, h5py, json, a user's class
        text = re.sub(r"\x1b\[[0-9;]*m", "", " ".join(str(error).split()))
        rule, fix = _explanation(text)
        found = f"{type(error).__name__}: {_essence(text)}"
        raise CheckpointError(
            message(rule, f"path={path!r}, size={os.path.getsize(path)} bytes; {found}", fix)
        ) from error


def _essence(text: str) -> str:
    # Keras quotes whole configurations before it comes to the cause
    named = re.search(r"Could not (?:locate|interpret|deserialize) [^.]*|Unknown (?:layer|loss|metric)[^.]*", text)
    if named:
        return named[0][:300]
    text = re.sub(r", value=[^>]*>", ">", text)  # whole arrays
    layer = re.search(r"Example error message for object (.*)", text)
    return (layer[1] if layer else text.rpartition("Exception encountered: ")[2])[:500]


def _explanation(text: str) -> tuple[str, str]:
    for is_it, rule, fix in _EXPLANATIONS:
        if is_it(text):
            return rule, fix
    return (
        "A file is loaded by what it was saved with: the same classes, and layers with the same weights.",
        "compare the versions of Keras, and the model's code, with those that saved the file",
    )


def _has(*parts: str) -> Callable[[str], bool]:
    return lambda text: any(part in text for part in parts)


_EXPLANATIONS = (
    (
        _has("lambda", "safe_mode", "unsafe", "Disallowed"),
        "Code in a file is not run.",
        "load_model(path, safe_mode=False), only for a file that you trust like a program",
    ),
    (
        _has(
            "Could not locate",
            "Unknown layer",
            "Unknown loss",
            "Unknown metric",
            "is not a KerasSaveable",
            "string indices must be",
            "Could not deserialize",
            "Could not interpret",
        ),
        "Own classes and functions in a file must be registered, or named when it is loaded.",
        'load_model(path, custom_objects={"MyLayer": MyLayer}), or @keras.saving.register_keras_serializable() above '
        "the class or function, imported before",
    ),
    (
        _has("objects could not be loaded", "mismatch", "must match", "expected"),
        "Weights are loaded into layers of the same shapes, in the same order.",
        "make the model as it was when the file was saved, or load_weights(model, path, partial=True)",
    ),
)


def _say_where(path, model, extra):
    replicas = model.distribute_strategy.num_replicas_in_sync
    if replicas > 1:
        _LOG.info("%s: loaded, mirrored over %d replicas", path, replicas)
        if not isinstance(model, DistributedModel):
            _LOG.warning(
                "%s: class %s is no DistributedModel, so %d replicas train it as stock Keras does",
                path,
                type(model).__name__,
                replicas,
            )
    elif extra is not None and extra["replicas"] > 1:
        _LOG.warning(
            "%s: saved on %d replicas, loaded as a plain model on one device; "
            "load_model(path, strategy=strategy) mirrors it",
            path,
            extra["replicas"],
        )
    else:
        _LOG.info("%s: loaded as a plain model on one device", path)
