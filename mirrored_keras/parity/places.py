"""Where in the user's code a thing is: `file:line`, as far as Python can tell."""

import inspect
import os
import re
from collections.abc import Callable
from typing import Any


def of(value: Any, pattern: str | None = None) -> str | None:
    """Returns where a function or class is written, or the first of its lines that matches a pattern.

    Args:
        value: A function, a method, a class, or an object whose class is meant.
        pattern: A regular expression; the first line of `value` where no line matches.

    Returns:
        `file:line`, the file relative to the current folder where it lies below; `None` for what is not the
        user's, or has no file.
    """
    value = value if inspect.isroutine(value) or inspect.isclass(value) else type(value)
    if getattr(value, "__module__", "").split(".")[0] in ("keras", "tensorflow", "mirrored_keras"):
        return None
    try:
        lines, first = inspect.getsourcelines(value)
        path = inspect.getsourcefile(value)
    except (OSError, TypeError):
        return None
    return None if path is None else f"{short(path)}:{first + _matching(lines, pattern)}"


def of_call(build: Callable[[], Any], name: str) -> str | None:
    """Returns where a class is called: in the build function, else in the rest of its file.

    Args:
        build: The build function.
        name: Name of the class, as `Dropout`.

    Returns:
        `file:line` or `None`.
    """
    pattern = rf"\b{re.escape(name)}\("
    function = inspect.unwrap(build) if inspect.isroutine(build) else type(build)
    for source in (function, inspect.getmodule(function)):
        try:
            lines, first = inspect.getsourcelines(source)  # type: ignore[arg-type]
            path = inspect.getsourcefile(source)  # type: ignore[arg-type]
        except (OSError, TypeError):
            continue
        if path is not None and any(re.search(pattern, line) for line in lines):
            return f"{short(path)}:{max(first, 1) + _matching(lines, pattern)}"
    return None


def source_of(value: Any) -> str:
    """Returns the source of a function or class, "" where there is none.

    Args:
        value: The function or class.

    Returns:
        The text.
    """
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        return ""


def _matching(lines, pattern):
    if pattern is None:
        return 0
    # the name of a function may hold the word that is looked for
    heads = () if pattern.startswith("def ") else ("def ", "class ")
    found = (n for n, line in enumerate(lines) if re.search(pattern, line) and not line.lstrip().startswith(heads))
    return next(found, 0)


def short(path: str) -> str:
    """Returns a path relative to the current folder, where it lies below.

    Args:
        path: The path.

    Returns:
        The shorter one.
    """
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
