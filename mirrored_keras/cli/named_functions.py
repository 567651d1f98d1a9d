"""Functions of the user that a command line names as `module:function`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any


class NotFoundError(Exception):
    """A name on the command line leads nowhere."""


def function_name(text: str) -> tuple[str, str]:
    """Returns module and function, as the `type` of an argument of `argparse`.

    Args:
        text: The argument.

    Raises:
        argparse.ArgumentTypeError: It is no `module:function`.
    """
    module, colon, function = text.partition(":")
    if not (module and colon and function):
        raise argparse.ArgumentTypeError(
            "must be the name of a module and of a function in it.\n"
            f"Received: {text!r}\nWhat to do: train:build_fn, for build_fn in train.py"
        )
    return module, function


def function_of(name: tuple[str, str]) -> Callable[[], Any]:
    """Returns the function; modules are looked for in the current folder, too.

    Args:
        name: From `function_name`.

    Raises:
        NotFoundError: There is no such module, or nothing in it of that name that can be called.
        ImportError: The module needs another one that is not there.
    """
    module, function = name
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        found: Any = importlib.import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and not module.startswith(error.name or ""):
            raise
        raise _not_found(name, str(error)) from error
    if not callable(found):
        raise _not_found(name, "it cannot be called")
    return found


def _not_found(name, why):
    return NotFoundError(
        f"module and function must be there.\nReceived: {':'.join(name)} ({why})\n"
        "What to do: run it in the folder of the module, or set PYTHONPATH"
    )
