"""Every example, every Python block of the documents and every docstring example runs as it stands."""

import ast
import doctest
import functools
import importlib
import os
import pathlib
import re
import subprocess
import sys

import pytest

import mirrored_keras
from contract.source import modules

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_CODE = [path for path in DOCUMENTS if "```python" in path.read_text(encoding="utf-8")]
DOCTESTS = [
    "mirrored_keras.batch_norm",
    "mirrored_keras.callbacks.range_test",
    "mirrored_keras.callbacks.step_ledger",
    "mirrored_keras.callbacks.throughput",
    "mirrored_keras.checkpoint.exporting",
    "mirrored_keras.checkpoint.loading",
    "mirrored_keras.checkpoint.restoring",
    "mirrored_keras.checkpoint.saving",
    "mirrored_keras.checkpoint.checkpoint_callback",
    "mirrored_keras.checkpoint.policies",
    "mirrored_keras.checkpoint.resume",
    "mirrored_keras.class_weights",
    "mirrored_keras.conversion",
    "mirrored_keras.data.batch_sizes",
    "mirrored_keras.data.checking",
    "mirrored_keras.data.digits",
    "mirrored_keras.data.features",
    "mirrored_keras.data.index",
    "mirrored_keras.data.reading",
    "mirrored_keras.data.writing",
    "mirrored_keras.doctor.environment",
    "mirrored_keras.doctor.findings",
    "mirrored_keras.doctor.static",
    "mirrored_keras.errors",
    "mirrored_keras.gathering",
    "mirrored_keras.global_batch",
    "mirrored_keras.memory_fit",
    "mirrored_keras.model",
    "mirrored_keras.parity.checking",
    "mirrored_keras.parity.findings",
    "mirrored_keras.parity.report",
    "mirrored_keras.parity.snapshots",
    "mirrored_keras.replica.collective",
    "mirrored_keras.replica.devices",
    "mirrored_keras.schedules",
    "mirrored_keras.tuning.outcomes",
    "mirrored_keras.tuning.pruning",
    "mirrored_keras.tuning.search",
    "mirrored_keras.tuning.space",
    "mirrored_keras.tuning.trial_context",
    "mirrored_keras.tuning.tuners",
    "mirrored_keras.whole_batch_loss",
    "mirrored_keras.whole_batch_metric",
    "mirrored_keras.workers.strategy",
]


@functools.cache  # the table of the README needs an example that has run already
def output_of(*arguments, folder=ROOT):
    package = pathlib.Path(mirrored_keras.__file__).resolve().parents[1]
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        # replicas on the CPU, whatever the machine has
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


def test_there_is_something_to_run():
    assert len(EXAMPLES) >= 3
    assert {"README.md", "custom_steps.md", "maths.md"} <= {path.name for path in WITH_CODE}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 100
    assert output_of(path)


@pytest.mark.parametrize("path", WITH_CODE, ids=lambda path: path.name)
def test_blocks_of_document(path, tmp_path):
    blocks = path.read_text(encoding="utf-8").count("```python")
    # documents write files where they run
    printed = output_of(ROOT / "tests" / "examples" / "code_blocks.py", path, folder=tmp_path)
    assert printed.endswith(f"{blocks} blocks\n")


@pytest.mark.parametrize("name", DOCTESTS)
@pytest.mark.filterwarnings("ignore")
def test_docstring_examples(name):
    failed, attempted = doctest.testmod(importlib.import_module(name))
    assert attempted and not failed


def test_no_module_with_docstring_examples_is_left_out():
    with_examples = {name for name, tree in modules().items() if any(">>>" in text for text in docstrings(tree))}
    assert with_examples == set(DOCTESTS)


def docstrings(tree):
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, nodes)]


def test_table_of_the_readme_is_what_the_example_prints():
    printed = output_of(ROOT / "examples" / "02_one_against_four.py")
    rows = [line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if "replica" in line]
    names = []
    for line in printed.splitlines():
        if "replica" in line:
            names.append(line.split("|")[1].strip())
            (row,) = [r for r in rows if r.startswith(f"| {names[-1]} |")]
            # the last digits may differ between processors
            assert losses(row) == pytest.approx(losses(line), abs=2e-4), names[-1]
            assert len(losses(row)) == 3
    assert len(names) == 3


def losses(row):
    return [float(number) for number in re.findall(r"\b\d\.\d{5}\b", row)]


def test_links_of_documents_lead_somewhere():
    for path in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


@pytest.mark.parametrize("name", mirrored_keras.__all__)
def test_public_name_is_in_the_reference(name):
    assert f":: mirrored_keras.{name}\n" in (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")


def test_every_rule_is_in_the_table_of_errors():
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    rules = [rule for tree in modules().values() for rule in rules_of(tree)]
    assert len(rules) > 25
    missing = [rule for rule in rules if not all(part in text for part in rule)]
    assert not missing


def rules_of(tree):
    """Yields the first argument of every call of `message`, cut into the pieces between its values."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "message" and node.args:
            rule = node.args[0]
            parts = rule.values if isinstance(rule, ast.JoinedStr) else [rule]
            texts = [part.value for part in parts if isinstance(part, ast.Constant)]
            # a lone mark or blank between two values says nothing
            yield [text.strip() for text in texts if len(text.strip()) > 3]
