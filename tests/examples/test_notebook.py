"""The notebook runs on any trained model, and its kept outputs are small and whole."""

import json

import matplotlib.pyplot as plt
import pytest

from tests.examples.notebook import code_of, run
from tests.house.tree import ROOT
from tests.support.service import store

NOTEBOOK = ROOT / "examples" / "trained_model.ipynb"


def test_it_walks_through_a_trained_model(tmp_path, monkeypatch, capsys):
    store(tmp_path / "runs" / "demo")
    monkeypatch.chdir(tmp_path)
    try:
        names = run(NOTEBOOK)
        assert len(plt.get_fignums()) == 3
    finally:
        plt.close("all")
    assert {hit.split for hit in names["hits"]} == {"test"}
    scores = [hit.score for hit in names["hits"]]
    assert scores == sorted(scores, reverse=True)
    assert names["best"].subject_id not in {hit.subject_id for hit in names["neighbours"]}
    printed = capsys.readouterr().out
    assert all(finding.name in printed for finding in names["model"].findings)
    assert "said in" in printed


@pytest.mark.parametrize("name", ["false_negatives", "first_model", "your_labels"])
def test_the_other_notebooks_are_short_and_keep_no_output(name: str) -> None:
    text = (ROOT / f"examples/{name}.ipynb").read_text(encoding="utf-8")
    cells = json.loads(text)["cells"]
    assert len(cells) < 15
    assert not any(cell.get("outputs") for cell in cells)
    for code in code_of(ROOT / f"examples/{name}.ipynb"):
        compile(code, name, "exec")
        assert "subprocess" not in code
