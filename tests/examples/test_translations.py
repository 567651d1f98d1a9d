"""Pages in Chinese have the headings and the code of the English ones, and links lead to files that are there."""

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted((DOCS / "zh").glob("*.md"))
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def outline(text):
    """Returns the levels of the headings, and those that are messages of programs and stay in English."""
    lines = [line.split(" ", 1) for line in FENCED.sub("", text).splitlines() if line.startswith("#")]
    return [level for level, _ in lines], [heading for _, heading in lines]


def test_there_are_translations():
    assert {"tutorial.md", "troubleshooting.md"} <= {path.name for path in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_headings_and_code_are_those_of_the_english_page(page):
    english, translated = ((path / page.name).read_text(encoding="utf-8") for path in (DOCS, DOCS / "zh"))
    assert FENCED.findall(translated) == FENCED.findall(english)
    (levels, headings), (levels_translated, headings_translated) = outline(english), outline(translated)
    assert levels_translated == levels
    for heading, other in zip(headings, headings_translated, strict=True):
        assert other == heading or re.search(r"[\u4e00-\u9fff]", other), f"neither English nor Chinese: {other}"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda path: path.name)
def test_relative_links_lead_somewhere(page):
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"
