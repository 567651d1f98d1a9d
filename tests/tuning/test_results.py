"""Table, TensorBoard log and pictures of a search."""

import csv
import json
import sys

import pytest

from mirrored_keras import SetupError, tuning
from tuning.searches import function_search


@pytest.fixture
def tuner(tmp_path):
    def function(hp):
        if hp.Choice("x", [1, 2, 3]) == 2:
            raise ValueError("two is too much")
        return hp.get("x") * 0.5

    return function_search(function, tmp_path, oracle=tuning.oracles.GridSearchOracle())


def test_table(tuner, tmp_path):
    tuner.save_results(tmp_path / "table.csv")
    with open(tmp_path / "table.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["hp.x"] for row in rows] == ["1", "2", "3"]
    assert [row["score"] for row in rows] == ["0.5", "", "1.5"]
    assert "two is too much" in rows[1]["reason"]
    tuner.save_results(tmp_path / "table.json")
    assert [row["outcome"] for row in json.loads((tmp_path / "table.json").read_text())] == [
        "completed",
        "failed",
        "completed",
    ]
    with pytest.raises(tuning.TuningError, match=r"a \.csv or a \.json file"):
        tuner.save_results(tmp_path / "table.xlsx")


def test_hparams(tuner, tmp_path):
    tuner.log_hparams(str(tmp_path / "board"))
    folders = sorted((tmp_path / "board").iterdir())
    assert len(folders) == 3
    for folder in folders:
        (events,) = folder.iterdir()
        assert b"_hparams_" in events.read_bytes()


@pytest.mark.parametrize("kind", ["scores", "parallel"])
def test_picture(kind, tuner, tmp_path):
    tuner.plot_results(tmp_path / f"{kind}.png", kind=kind)
    assert (tmp_path / f"{kind}.png").read_bytes().startswith(b"\x89PNG")


def test_pictures_need_matplotlib(tuner, tmp_path, monkeypatch):
    with pytest.raises(tuning.TuningError, match="`kind` of a picture"):
        tuner.plot_results(tmp_path / "a.png", kind="pie")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SetupError, match=r"(?s)Pictures need matplotlib.*pip install \"mirrored-keras\[plot\]\""):
        tuner.plot_results(tmp_path / "a.png")
