"""Every example runs in seconds, on public names alone, and does what its head says.

Notebooks run on any trained model, and keep no outputs but small ones.
"""

import csv
import json
import math
import runpy
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from tests.examples.notebook import code_of, run
from tests.house.tree import ROOT
from tests.support.bert import tiny_bert, tiny_tokenizer
from tests.support.dicom import dicom_bytes, ramp
from tests.support.service import png, running

EXAMPLES = ROOT / "examples"
KEY = "k" * 40


def example(name: str, monkeypatch: pytest.MonkeyPatch, *words: object) -> Any:
    """Run an example as a script would, and give what its `main` gives."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()


def test_own_loop_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert example("own_loop", monkeypatch) > 0.5


def test_without_correction_it_is_the_loss_of_open_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    assert example("open_clip_loss", monkeypatch) < 1e-5


@pytest.mark.filterwarnings("ignore")
def test_the_trainer_lowers_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = example("hf_trainer", monkeypatch, "--steps", 20)
    assert losses[-1] < losses[0]


def test_sentences_become_eta(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tiny_bert().save_pretrained(tmp_path / "bert")
    tiny_tokenizer().save_pretrained(tmp_path / "bert")
    words = [word for word in tiny_tokenizer().get_vocab() if word.isalpha()][:6]
    lines = [" ".join(words[:2]), " ".join(words[2:]), "", " ".join(words[:2])]
    (tmp_path / "sentences.txt").write_text("\n".join(lines))
    output = tmp_path / "eta.csv"
    options = ["--model", tmp_path / "bert", "--output", output]
    example("sentences_to_eta", monkeypatch, tmp_path / "sentences.txt", *options)
    rows = list(csv.DictReader(output.read_text().splitlines()))
    assert {row["sentence"] for row in rows} == set(lines) - {""}
    for row in rows:
        eta = min(0.2 * math.exp(0.35 * float(row["pll_nats"])), 0.2)
        assert float(row["eta"]) == pytest.approx(eta, rel=0.01)


def test_a_folder_becomes_a_table_and_a_bad_image_a_line(monkeypatch, capsys, tmp_path, published):
    images = tmp_path / "images"
    (images / "more").mkdir(parents=True)
    (images / "a.dcm").write_bytes(dicom_bytes(ramp(96, 64)))
    (images / "more" / "b.png").write_bytes(png())
    (images / "c.png").write_bytes(b"no image")
    words = [published / "model", images, "--output", tmp_path / "table.csv"]
    assert example("zero_shot_folder", monkeypatch, *words) == 1
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert [row["image"] for row in rows] == ["a.dcm", "more/b.png"]
    assert all(0 <= float(row["effusion"]) <= 1 for row in rows)
    assert "c.png" in capsys.readouterr().err


def test_the_service_answers(monkeypatch, capsys, tmp_path, published):
    (tmp_path / "key").write_text(f"{KEY}\n")
    (tmp_path / "key").chmod(0o400)
    (tmp_path / "image.png").write_bytes(png())
    with running(published, key_file=str(tmp_path / "key")) as service:
        words = [tmp_path / "image.png", "effusion", "--url", service.url]
        example("ask_service", monkeypatch, *words, "--key-file", tmp_path / "key")
    text = capsys.readouterr().out
    assert "effusion" in text
    assert "best at x" in text


def test_a_notebook_walks_through_a_trained_model(tmp_path, monkeypatch, capsys, published):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/demo").symlink_to(published)
    monkeypatch.chdir(tmp_path)
    try:
        names = run(EXAMPLES / "trained_model.ipynb")
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
    file = EXAMPLES / f"{name}.ipynb"
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    assert len(cells) < 15
    assert not any(cell.get("outputs") for cell in cells)
    for code in code_of(file):
        compile(code, name, "exec")
        assert "subprocess" not in code
