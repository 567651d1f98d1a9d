"""Every public name is documented, with an example."""

import inspect

import pytest

import mirrored_keras

NAMES = [name for name in mirrored_keras.__all__ if not name.startswith("__")]


def test_one_screen_of_names():
    assert len(NAMES) == len(set(NAMES)) <= 25
    assert "DistributedModel" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_public_name_has_a_docstring_with_an_example(name):
    value = getattr(mirrored_keras, name)
    if inspect.ismodule(value):
        assert inspect.getdoc(value)
        return
    text = vars(value).get("__doc__") if inspect.isclass(value) else inspect.getdoc(value)
    assert text, "no docstring of its own"
    assert len(text.strip().splitlines()[0]) > 20
    if not (inspect.isclass(value) and issubclass(value, (Exception, Warning))):
        assert ">>>" in text or "```" in text or "Example" in text


@pytest.mark.parametrize("name", NAMES)
def test_public_parameters_are_typed(name):
    value = getattr(mirrored_keras, name)
    if not callable(value) or (inspect.isclass(value) and issubclass(value, Exception)):
        return
    signature = inspect.signature(value)
    untyped = [p.name for p in signature.parameters.values() if p.annotation is p.empty]
    assert not untyped
