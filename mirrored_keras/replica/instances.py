"""Functions of single objects, replaced for the time of a block: no class is ever changed."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_LOCK = threading.Lock()
_DEPTHS: dict[tuple[int, str], int] = {}


Replacement = tuple[Any, str, Callable[[Any], Any]]


@contextlib.contextmanager
def replaced_methods(replacements: Sequence[Replacement]) -> Iterator[None]:
    """Replaces methods of single objects inside the block.

    Blocks may nest and may overlap between threads: all replicas share the objects, and each traces in a
    thread of its own. The last block that ends puts the methods back.

    Args:
        replacements: `(object, name of a method, wrap)`; `wrap` takes the bound method that it replaces.

    Yields:
        Nothing.
    """
    keys = [(id(owner), name) for owner, name, _ in replacements]
    with _LOCK:
        for key, (owner, name, wrap) in zip(keys, replacements, strict=True):
            if key not in _DEPTHS:
                owner.__dict__[name] = wrap(getattr(owner, name))
            _DEPTHS[key] = _DEPTHS.get(key, 0) + 1
    try:
        yield
    finally:
        with _LOCK:
            for key, (owner, name, _) in zip(keys, replacements, strict=True):
                _DEPTHS[key] -= 1
                if not _DEPTHS[key]:
                    del _DEPTHS[key], owner.__dict__[name]


def replaced_on_instances(
    owners: Sequence[Any], name: str, function: Callable[..., Any]
) -> contextlib.AbstractContextManager[None]:
    """Replaces one method of several objects inside the block, as `replaced_methods` does.

    Args:
        owners: The objects.
        name: The method's name.
        function: Takes the object, then what the method takes.

    Returns:
        The context manager.
    """

    def replacing(owner: Any) -> Replacement:
        return owner, name, lambda _: functools.partial(function, owner)

    return replaced_methods([replacing(owner) for owner in owners])
