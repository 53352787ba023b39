"""An adopted checkpoint goes through all commands that take a model: it works, or says why not."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from medclip_dcl.inference.adoption import adopt
from medclip_dcl.inference.predictor import load
from pipelines.__main__ import main
from tests.support.jobs import config_for, write_studies
from tests.support.public_checkpoints import PROCESSORS, write_biovil, write_pair
from tests.support.service import running

MAKERS: dict[str, Callable[[Path], object]] = {
    "clip": lambda folder: write_pair(folder, "clip", PROCESSORS["clip"]),
    "biovil": lambda folder: write_biovil(folder, temporal=False),
}
STEPS = (
    ("build_manifest", 0, "manifest"),
    ("prepare_images --set images.fit=null", 0, "prepared"),
    ("split_sentences", 0, "sentences"),
    ("read_claims", 0, "claims"),
    *((name, 4, '"images": {"size_px": SIZE, "fit": {"how": "') for name in
      ("build_index", "calibrate_scores", "fit_head", "evaluate")),
    ("prepare_images", 0, "prepared"),
    ("build_index", 0, "index"),
    ("calibrate_scores", 0, "model"),
    ("fit_head", 0, "Pleural Effusion"),
    ("evaluate", 0, "results"),
    ("build_index", 0, "index"),
    ("write_cards", 0, "cards"),
    ("write_report", 0, "report"),
    ("push_model --repo a/b --dry-run", 0, "nothing was sent"),
    ("export run --to onnx --out graphs", 0, "graphs/README.md"),
    ("export run --to transformers --out again", 2, "export it to onnx"),
    ("compare run run", 0, "no verdict: one side has one run"),
)  # fmt: skip
"""Command, its exit code, and what it prints or refuses with."""


@pytest.fixture(scope="module", params=["clip", "biovil"])
def work(request, tmp_path_factory) -> Path:
    """A run whose model is adopted, and its config, with the maker's own preprocessing."""
    root = tmp_path_factory.mktemp(request.param)
    MAKERS[request.param](root / "checkpoint")
    adopt(root / "checkpoint", root / "run/model")
    write_studies(root / "studies.csv", 40)
    made = json.loads((root / "run/model/config.json").read_text())["images"]
    columns = {"path": "file", "subject_id": "patient", "report": "report"}
    columns["labels"] = {"Pleural Effusion": "effusion"}
    source = {"kind": "table", "root": str(root), "table": "studies.csv", "columns": columns}
    config_for(
        root / "run",
        source=source | {"frontal_views": [""], "validate_share": 0.3, "test_share": 0.3},
        images={name: made[name] for name in ("size_px", "fit")},
        probabilities={"least_per_class": 2},
        evaluate={"bootstrap": 5},
        card={"intended_use": "Tests.", "limits": ["All."], "licence": "mit", "data": "None."},
    )
    return root


def test_every_command_takes_it_or_says_why_not(work, monkeypatch, capsys):
    monkeypatch.chdir(work)
    size = yaml.safe_load((work / "run.yaml").read_text())["images"]["size_px"]
    for line, code, shown in STEPS:
        command, *words = line.split()
        if "onnx" in words and work.name.startswith("biovil"):
            continue  # a ResNet and a BERT, as the exports' own tests have
        own = [] if command in {"export", "compare"} else ["--config", "run.yaml"]
        assert main([command, *own, *words]) == code, line
        output = capsys.readouterr()
        assert shown.replace("SIZE", str(size)) in output.out + output.err, line
    card = (work / "run/cards/model_card.md").read_text(encoding="utf-8")
    assert "Trained elsewhere, and adopted" in card
    assert "| adopted from |" in card
    assert "| objective |" not in card
    predictor = load(work / "run", "cpu")
    assert f"elsewhere: {predictor.card['source']['family']}, checkpoint" in repr(predictor)
    (head,) = predictor.classify(work / "images/1.png").heads
    assert 0 <= head.score <= 1
    with running(work / "run") as service, service.client() as client:
        asked = {"target": "image", "text": "There is a left pleural effusion.", "k": "3"}
        hits = client.post("/retrieve", data=asked).json()
        assert len(hits["hits"]) == 3, hits
