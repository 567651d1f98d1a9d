"""Functional models of a class without changing the class."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from mirrored_keras.replica import private


def functional_variant(cls: type) -> type:
    """Returns the class of functional models of `cls`: the same class with Keras' `Functional` behind it.

    `keras.Model` would rewrite the bases of `cls` and of all its parents in place at the first functional
    use, after which no subclass with an own `call` can be made.

    Args:
        cls: `DistributedModel` or a subclass.

    Returns:
        A subclass of `cls` under the same name, made once; `cls` itself if it is functional.
    """
    if issubclass(cls, private.Functional):
        return cls
    variant = cls.__dict__.get("_functional_variant")
    if variant is None:
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        variant = type(cls)(cls.__name__, (cls, private.Functional), names)
        setattr(cls, "_functional_variant", variant)  # noqa: B010  (a type has no such attribute to a type checker)
        _register_alike(cls, variant)
    return variant


def makes_functional(cls: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether a call of a class makes a functional model, as far as it can be told before `__init__`.

    Args:
        cls: `DistributedModel` or a subclass, whose own `__init__` may take two arguments that are no tensors.
        args: Positional arguments of the call.
        kwargs: Named arguments.
    """
    if not private.is_functional_call(args, dict(kwargs)):
        return False
    return "__init__" not in _own_attributes(cls) or private.are_symbolic((args[:2], kwargs.get("outputs", ())))


def _own_attributes(cls):
    """Returns what the classes of a user define: those before `DistributedModel`, the first of this package."""
    own = itertools.takewhile(lambda base: not base.__module__.startswith("mirrored_keras."), cls.__mro__)
    return {name for base in own for name in vars(base)}


def original_class(cls: type) -> type:
    """Returns the class that a functional variant was made from; any other class comes back itself.

    Args:
        cls: A class.

    Returns:
        The class that its name leads to.
    """
    return cls.__mro__[1] if cls.__mro__[1].__dict__.get("_functional_variant") is cls else cls


def _register_alike(cls, variant):
    registered = keras.saving.get_registered_name(cls)
    if ">" in registered:
        package, name = registered.split(">", 1)
        keras.saving.register_keras_serializable(package, name)(variant)
        # the name keeps leading to the class itself, which revives both kinds
        keras.saving.get_custom_objects()[registered] = cls
