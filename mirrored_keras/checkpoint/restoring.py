"""Restores weights into a model made by code, whole or in part, with a report of what was restored."""

import contextlib
import dataclasses
import functools
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from mirrored_keras import DistributedModel
from mirrored_keras.checkpoint import inspection, refusals
from mirrored_keras.checkpoint.agreement import difference
from mirrored_keras.checkpoint.contents import restore_random_state
from mirrored_keras.checkpoint.file_layout import has_layout_of
from mirrored_keras.checkpoint.loading import errors_explained
from mirrored_keras.checkpoint.model_states import description_of
from mirrored_keras.checkpoint.optimizer_state import (
    LOST_STATE,
    OWN_GROUP,
    assign,
    check_optimizer_restored,
    optimizer_shapes,
    values_in,
)
from mirrored_keras.checkpoint.tensorflow_checkpoint import is_checkpoint, newest_in, read_checkpoint
from mirrored_keras.errors import CheckpointError, MirroredKerasError, message
from mirrored_keras.replica import private
from mirrored_keras.replica.instances import replaced_methods
from mirrored_keras.replica.update import build_optimizer

_LOG = logging.getLogger(__name__)
_LAYERS = keras.layers
_ONLY_ASSIGNING = tuple(
    kind.load_own_variables
    for kind in (_LAYERS.Layer, _LAYERS.Dense, _LAYERS.EinsumDense, _LAYERS.Embedding, _LAYERS.Conv2D)
)
_SUFFIXES = (".weights.h5", ".h5", ".hdf5", ".keras")


@dataclasses.dataclass(frozen=True)
class RestoreReport:
    """What `load_weights` restored.

    Attributes:
        restored: Paths of the variables, of model and optimizer, that have the values of the file.
        kept: Paths of the variables that have the values they had.
        optimizer: "restored", "not in the file", or "passed over: the model is not compiled".

    Example:
        >>> print(RestoreReport(restored=("hidden/kernel",), kept=("head/kernel",)))
        restored 1 variables, kept 1; optimizer: restored
          kept: head/kernel
    """

    restored: tuple[str, ...]
    kept: tuple[str, ...]
    optimizer: str = "restored"

    def __str__(self) -> str:
        """Returns one line per variable that was kept, below a headline."""
        lines = [f"restored {len(self.restored)} variables, kept {len(self.kept)}; optimizer: {self.optimizer}"]
        return "\n".join([*lines, *(f"  kept: {path}" for path in self.kept)])


def load_weights(
    model: keras.Model, path: str | os.PathLike[str], *, partial: bool = False, verify: bool = True
) -> RestoreReport:
    """Restores weights, optimizer state and random state into a model that code has made, on all its replicas.

    An optimizer that is not built yet is built first, in the scope. After an error all variables have the values
    that they had. May be called anywhere outside the replicas.

    Args:
        model: A built model; compiled, if its optimizer is to go on.
        path: A `.weights.h5` file, a whole-model `.h5` or `.keras` file, or the prefix of a `tf.train.Checkpoint`,
            or the folder of a `tf.train.CheckpointManager`, whose newest is taken.
        partial: Whether layers that the file does not have, or has in other shapes, keep their values, for
            fine-tuning. Otherwise every variable must be restored.
        verify: Whether the checksum is compared.

    Returns:
        Which variables were restored.

    Raises:
        CheckpointError: The file does not fit the model, is damaged or unsafe, or the call comes from inside a
            replica.
        FileNotFoundError: There is no such file.

    Example:
        >>> import keras, os, tempfile
        >>> from mirrored_keras import load_weights
        >>> old = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        >>> path = os.path.join(tempfile.mkdtemp(), "old.weights.h5")
        >>> old.save_weights(path)
        >>> new = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(2)])
        >>> len(load_weights(new, path, partial=True).kept)
        2
    """
    refusals.check_context("load_weights", getattr(model, "distribute_strategy", None))
    refusals.check_built(model)
    name = newest_in(os.fsdecode(path))
    if is_checkpoint(name):
        with _rolled_back_on_error(model), errors_explained(f"{name}.index"):
            _build_optimizer(model)
            return _report(model, read_checkpoint(model, name, partial=partial))
    name = inspection.check_path(path, suffixes=_SUFFIXES)
    shapes: dict[str, tuple[int, ...]] = {}
    extra = inspection.check_file(name, verify=verify, shapes=shapes)
    in_file, in_model = _has_optimizer(name, shapes), getattr(model, "optimizer", None) is not None
    with_optimizer = in_file and in_model
    if in_file and not in_model:
        _LOG.warning(
            "%s: the model is not compiled, so the state of the optimizer is passed over; compile it first", name
        )
    with errors_explained(name), model.distribute_strategy.scope():
        if with_optimizer:
            _build_optimizer(model, (extra or {}).get("optimizer"))
        if partial:
            with _rolled_back_on_error(model), _assigned(model) as assigned:
                _read(model, name, partial=True, with_optimizer=with_optimizer, shapes=shapes)
        else:
            _check_description(model, extra, name, with_optimizer=with_optimizer)
            verified = verify and extra is not None
            read = functools.partial(_read, model, name, partial=False, with_optimizer=with_optimizer, shapes=shapes)
            if verified and not _is_whole_h5(name) and _only_assigns(model) and has_layout_of(model, shapes):
                with _assigned(model) as assigned:
                    read()  # nothing can fail any more: the values need not be held until all have been read
            else:
                assigned = _read_all_or_none(model, name, read)
        if not partial or _fits(model, extra):
            restore_random_state(model, extra)
    report = _report(model, assigned, expects_optimizer=with_optimizer)
    if with_optimizer:
        return report
    where = "passed over: the model is not compiled" if in_file else "not in the file"
    return dataclasses.replace(report, optimizer=where)


def _read_all_or_none(model, name, read):
    """Restores every variable or, after an error, none; returns the ids of those that were assigned to."""
    values: list[tuple[Any, Any]] = []
    with _assigned(model, later=values) as assigned:
        read()
    _check_all_restored(model, assigned, name)
    if _only_assigns(model):
        for variable, value in values:
            variable.assign(value)
        return assigned
    with _rolled_back_on_error(model), _assigned(model) as assigned:
        read()
    return assigned


def _check_description(model, extra, name, *, with_optimizer):
    # Keras reads what a model asks for, whatever else there is in a file
    if extra is None:
        return
    description = description_of(model)
    now, then = description["weights"], extra["description"]["weights"]
    kinds = description["optimizer"], extra["description"]["optimizer"]
    generators = len(extra["random_state"]), len(DistributedModel.get_random_state(model))
    if now != then:
        index = next((i for i, pair in enumerate(zip(now, then, strict=False)) if pair[0] != pair[1]), None)
        where = "" if index is None else f" at {model.weights[index].path!r}"
        reason = difference("weights", now, then) + where
    elif generators[0] != generators[1]:
        reason = f"{generators[1] - 1} seed generators, but {generators[0] - 1}"
    elif with_optimizer and kinds[0] != kinds[1]:
        reason = difference("optimizer", *kinds)
    else:
        return
    raise CheckpointError(
        message(
            "A file is restored into a model with the same weights, random layers and optimizer, unless a partial "
            "restore is asked for.",
            f"model={model.name!r}: {reason} in {name!r}",
            "load_weights(model, path, partial=True)",
        )
    )


def _check_all_restored(model, assigned, name):
    # a layer that reads its own variables decides which of them are in files
    own = [layer for layer in private.all_layers(model) if _reads_by_itself(layer)]
    assigned = assigned | {id(variable) for layer in own for variable in layer.variables}
    missing = [variable.path for variable in model.weights if id(variable) not in assigned]
    if missing:
        raise CheckpointError(
            message(
                "Every weight of the model is restored, unless a partial restore is asked for.",
                f"path={name!r}, which has nothing for {missing[:5]} and {max(0, len(missing) - 5)} more",
                "load_weights(model, path, partial=True)",
            )
        )


def _read(model, name, *, partial, with_optimizer, shapes):
    with warnings.catch_warnings():
        # the report tells, or the checks
        warnings.filterwarnings("ignore", message=LOST_STATE)
        warnings.filterwarnings("ignore", message="Skipping nested container")
        if partial:
            warnings.filterwarnings("ignore", message="A total of")
            warnings.filterwarnings("ignore", message="Skipping loading weights for layer")
        keras.Model.load_weights(model, name, skip_mismatch=partial)
    if not with_optimizer:
        return
    try:
        if _is_whole_h5(name):
            assign(model.optimizer, model.trainable_variables, values_in(name) or [], name)
        else:
            check_optimizer_restored(model.optimizer, optimizer_shapes(shapes), name)
    except MirroredKerasError:
        if not partial:
            raise


def _only_assigns(model):
    # others compute something from what they have read, so they must read after their variables were set
    return all(type(layer).load_own_variables in _ONLY_ASSIGNING for layer in private.all_layers(model))


def _reads_by_itself(layer):
    return (
        not isinstance(layer, keras.Model)
        and not type(layer).__module__.startswith("keras.")
        and (type(layer).load_own_variables is not keras.layers.Layer.load_own_variables)
    )


def _is_whole_h5(name):
    return name.endswith((".h5", ".hdf5")) and not name.endswith(".weights.h5")


def _has_optimizer(name, shapes):
    if _is_whole_h5(name):
        return any(array.startswith(("optimizer_weights/", f"{OWN_GROUP}/")) for array in shapes)
    return optimizer_shapes(shapes) is not None


def _fits(model, extra):
    return extra is not None and len(extra["random_state"]) == len(DistributedModel.get_random_state(model))


def _build_optimizer(model, facts=None):
    variables = model.trainable_variables
    if facts is not None and max(facts["trains"], default=-1) < len(model.weights):
        variables = [model.weights[index] for index in facts["trains"]]  # layers may have been frozen since
    if getattr(model, "optimizer", None) is not None and variables:
        with model.distribute_strategy.scope():
            build_optimizer(model.optimizer, variables)


def _variables(model):
    optimizer = getattr(model, "optimizer", None)
    return [*model.weights, *(optimizer.variables if optimizer is not None and optimizer.built else ())]


@contextlib.contextmanager
def _assigned(model, *, later: list[tuple[Any, Any]] | None = None) -> Iterator[set[int]]:
    """Notes which variables are assigned to inside the block; `later` takes the values, and nothing is changed."""
    assigned: set[int] = set()

    def noting(variable: Any) -> Any:
        def wrap(assign: Any) -> Any:
            def noted(value: Any) -> Any:
                shape = tuple(getattr(value, "shape", ()))
                if shape != tuple(variable.shape):
                    raise ValueError(f"{variable.path!r} of shape {tuple(variable.shape)}, in the file of {shape}")
                assigned.add(id(variable))
                if later is None:
                    return assign(value)
                later.append((variable, value))
                return None

            return noted

        return variable, "assign", wrap

    with replaced_methods([noting(variable) for variable in _variables(model)]):
        yield assigned


def _report(model, assigned, *, expects_optimizer=True):
    variables = _variables(model) if expects_optimizer else model.weights
    return RestoreReport(
        restored=tuple(v.path for v in variables if id(v) in assigned),
        kept=tuple(v.path for v in variables if id(v) not in assigned),
    )


@contextlib.contextmanager
def _rolled_back_on_error(model):
    # tensors that share the variables' memory until these are assigned to: nothing is copied
    before = [(variable, tf.convert_to_tensor(variable.value)) for variable in _variables(model)]
    try:
        yield
    except BaseException:
        for variable, value in before:
            variable.assign(value)
        raise
