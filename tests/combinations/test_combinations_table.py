"""The table of supported combinations in the documents is what trainings gave, here and now.

`MIRRORED_KERAS_WRITE_TABLE=1 pytest tests/combinations` writes it anew.
"""

import os
import pathlib

import pytest

from combinations import combinations

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "combinations.md"
BEGIN, END = "<!-- made by tests/combinations: begin -->\n", "<!-- end -->\n"

pytestmark = pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")


def test_the_table_of_the_documents():
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    old, _, after = rest.partition(END)
    table = combinations.table()
    if os.environ.get("MIRRORED_KERAS_WRITE_TABLE"):
        PAGE.write_text(f"{before}{BEGIN}{table}{END}{after}", encoding="utf-8")
        old = table
    assert table == old
    assert "off by" not in table
