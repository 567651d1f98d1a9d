"""Every example, every Python block of the documents and every docstring example runs as it stands."""

import doctest
import importlib
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_CODE = [path for path in DOCUMENTS if "```python" in path.read_text(encoding="utf-8")]
DOCTESTS = [
    "mirrored_keras.class_weights",
    "mirrored_keras.conversion",
    "mirrored_keras.errors",
    "mirrored_keras.global_batch",
    "mirrored_keras.model",
    "mirrored_keras.replica.collective",
    "mirrored_keras.replica.devices",
]


def output_of(*arguments):
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def test_there_is_something_to_run():
    assert len(EXAMPLES) >= 3
    assert {"README.md", "custom_steps.md", "strategy_and_scope.md"} <= {path.name for path in WITH_CODE}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 100
    assert output_of(path)


@pytest.mark.parametrize("path", WITH_CODE, ids=lambda path: path.name)
def test_blocks_of_document(path):
    blocks = path.read_text(encoding="utf-8").count("```python")
    assert output_of(ROOT / "tests" / "examples" / "code_blocks.py", path).endswith(f"{blocks} blocks\n")


@pytest.mark.parametrize("name", DOCTESTS)
@pytest.mark.filterwarnings("ignore")
def test_docstring_examples(name):
    failed, attempted = doctest.testmod(importlib.import_module(name))
    assert attempted and not failed


def test_table_of_the_readme_is_what_the_example_prints():
    printed = output_of(ROOT / "examples" / "02_one_against_four.py")
    rows = [line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if "replica" in line]
    for line in printed.splitlines():
        if "replica" in line:
            name = line.split("|")[1].strip()
            (row,) = [r for r in rows if r.startswith(f"| {name} |")]
            # losses to four digits: their last one may differ between processors
            assert losses(row) == pytest.approx(losses(line), abs=2e-4), name


def losses(row):
    return [float(number) for number in re.findall(r"\b\d\.\d{5}\b", row)]


def test_links_of_documents_lead_somewhere():
    for path in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
