"""Functions of single objects, replaced for the time of a block: no class is ever changed."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_LOCK = threading.Lock()
_DEPTHS: dict[tuple[int, str], int] = {}


@contextlib.contextmanager
def replaced_on_instances(owners: Sequence[Any], name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Replaces a method of some objects inside the block.

    Blocks may nest and may overlap between threads: all replicas share the objects, and each traces in a
    thread of its own. The last block that ends puts the method back.

    Args:
        owners: The objects.
        name: The method's name.
        function: Takes the object, then what the method takes.

    Yields:
        Nothing.
    """
    keys = [(id(owner), name) for owner in owners]
    with _LOCK:
        for owner, key in zip(owners, keys, strict=True):
            if key not in _DEPTHS:
                owner.__dict__[name] = functools.partial(function, owner)
            _DEPTHS[key] = _DEPTHS.get(key, 0) + 1
    try:
        yield
    finally:
        with _LOCK:
            for owner, key in zip(owners, keys, strict=True):
                _DEPTHS[key] -= 1
                if not _DEPTHS[key]:
                    del _DEPTHS[key], owner.__dict__[name]
