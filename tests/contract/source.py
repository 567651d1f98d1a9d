"""The package's own source, read as syntax trees: nothing is imported to check an import."""

import ast
import functools
import importlib.util
import pathlib

# Found without importing the package.
ROOT = pathlib.Path(importlib.util.find_spec("mirrored_keras").origin).parent


@functools.cache
def modules():
    """Returns dotted name -> syntax tree of every module of the package."""
    trees = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        trees[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return trees


def imports(name):
    """Yields the dotted target of every import in a module, also of those inside functions.

    `from a import b` is `a.b` where that is a module of the package, else `a`.
    """
    for node in ast.walk(modules()[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: imports name the package, line {node.lineno}"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in modules() else node.module


def room(name):
    """Returns the folder or file directly below the package that a module lives in."""
    return [*name.split("."), ""][1]


def private_attributes(tree):
    """Yields `(name, line, is_own)` of every attribute that starts with one underscore.

    `is_own` says that it is read or set on `self`, `cls` or `super()`, or defined in a class body.
    Names given as text to `getattr`, `setattr` and `hasattr` count.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            yield node.attr, node.lineno, _is_self(node.value)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ACCESSORS:
            text = node.args[1] if len(node.args) > 1 else None
            if isinstance(text, ast.Constant) and _is_private(str(text.value)):
                yield text.value, node.lineno, _is_self(node.args[0])
        elif isinstance(node, ast.ClassDef):
            methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
            yield from ((m.name, m.lineno, True) for m in methods if _is_private(m.name))


ACCESSORS = ("getattr", "setattr", "hasattr", "delattr")


NAMED_TUPLE = ("_replace", "_asdict", "_make", "_fields")  # public in spite of the underscore


def _is_private(name):
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE


def _is_self(node):
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", "") == "super"
    return getattr(node, "id", "") in ("self", "cls")


def assigned_names(tree):
    """Returns every private name that a module defines: functions, variables, attributes of objects."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return {name for name in names if _is_private(name)}
