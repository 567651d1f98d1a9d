"""An own `train_step`, read by the names it uses: nothing of it runs."""

import inspect
import types
from collections.abc import Iterator
from typing import Any

import keras

from mirrored_keras.doctor.findings import Finding
from mirrored_keras.own_step import RECIPE

_BY_THE_PACKAGE = {"GlobalBatch", "share"}
_LOSS_OF_KERAS = {"compute_loss", "_compute_loss"}
_CLIPPING = {"clip_by_global_norm", "clip_by_norm", "clip_by_value"}


def findings_of_train_step(model: keras.Model) -> Iterator[Finding]:
    """Yields what an own `train_step` does that depends on the number of replicas.

    Args:
        model: Any model.

    Yields:
        Findings.
    """
    if not _is_own(model, "train_step"):
        return
    subject = f"{type(model).__name__}.train_step"
    names = names_used(type(model), "train_step")
    if not names & (_BY_THE_PACKAGE | _LOSS_OF_KERAS) and not _calls_parent(model):
        reason = (
            "It makes its own loss and updates the weights without `GlobalBatch`, so nobody can tell by what its loss "
            "was divided: on several replicas its update and its logs may differ from those on one."
        )
        yield Finding("error", subject, reason, f"two calls make it exact:{RECIPE}")
    elif names & _CLIPPING and not names & _BY_THE_PACKAGE:
        reason = "It clips gradients before they are summed: each replica clips its own part."
        yield Finding("error", subject, reason, "keras.optimizers.Adam(1e-3, global_clipnorm=1.0)   # clips the sum")


def _is_own(model, name):
    return not getattr(type(model), name).__module__.startswith(("keras.", "mirrored_keras."))


def _calls_parent(model):
    code = _code(type(model).train_step)
    return code is not None and "super" in code.co_names and "train_step" in code.co_names


def names_used(cls: type, method: str) -> set[str]:
    """Returns the names that a method uses, and those that the methods of its class that it calls use.

    Args:
        cls: A class.
        method: Name of the method.
    """
    used: set[str] = set()
    waiting, seen = [method], set()
    while waiting:
        name = waiting.pop()
        value = inspect.getattr_static(cls, name, None)
        code = _code(value)
        if name in seen or code is None or str(getattr(value, "__module__", "")).startswith(("keras.", "mirrored")):
            continue
        seen.add(name)
        found = set(_names(code))
        used |= found
        waiting += [one for one in found if one not in _LOSS_OF_KERAS and hasattr(cls, one)]
    return used


def _code(function: Any) -> types.CodeType | None:
    function = getattr(function, "python_function", function)  # of a `tf.function`
    return getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)


def _names(code):
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
