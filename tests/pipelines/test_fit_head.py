"""fit_head: heads of a run's own labels, of a table of one's own, and what is refused."""

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.inference import model_package
from medclip_dcl.inference.heads import Head, read_heads
from medclip_dcl.inference.predictor import load
from pipelines.job import main_of
from tests.house.tree import ROOT
from tests.support.dicom import raster_bytes
from tests.support.jobs import run_here, write_evaluated
from tests.support.published import publish
from tests.support.tiny_models import random_images

main = main_of("fit_head")

PATIENTS = 40


def fit(work: Path, *settings: str, code: int = 0) -> dict[str, Head]:
    run_here("fit_head", work, *settings, code=code)
    return {head.card.name: head for head in read_heads(work / "model")}


def test_a_head_of_the_run_s_own_labels_goes_into_its_model(evaluated, tmp_path, capsys):
    work = shutil.copytree(evaluated, tmp_path / "work")
    before = open_artifact(work / "model", model_package.ARTIFACT)
    (head,) = fit(work).values()  # no validation image has an effusion
    after = open_artifact(work / "model", model_package.ARTIFACT)
    assert (head.card.name, head.card.kind) == ("Pneumonia", "linear")
    assert after.digest != before.digest
    assert before.files.items() <= after.files.items()
    assert set(after.files) - set(before.files) == {"heads.json", "heads.safetensors"}
    assert '"state": "made"' in capsys.readouterr().out
    fit(work)
    assert '"state": "reused"' in capsys.readouterr().out
    assert open_artifact(work / "model", model_package.ARTIFACT).digest == after.digest
    predictor = load(work / "model", "cpu")
    images = random_images(2, 64)
    (found,) = zip(*predictor.answer_heads(predictor.embed_images(images)), strict=True)
    means = predictor.embed_images(images).flatten(1, 2).mean(dim=1).numpy()
    margins = head.margins(means)
    assert [item.score for item in found] == pytest.approx(1 / (1 + np.exp(-margins)), rel=1e-4)


def test_patients_and_labels_that_cannot_be_taken_are_refused(tmp_path, capsys):
    work = write_evaluated(tmp_path / "seen", ["p024"])  # of the validation split
    fit(work, code=4)
    assert "trained on 1 of 16 evaluated patients" in capsys.readouterr().err
    work = write_evaluated(tmp_path / "twice", repeated=("p000", "p032"))
    fit(work, code=4)
    assert "in the heads' training" in capsys.readouterr().err


def test_the_tutorial_runs(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    page = page.partition("## Labels of your own")[2].partition("\n## ")[0]
    (table,) = re.findall(r"```csv\n(.*?)```", page, re.DOTALL)
    (config,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    publish(Path("runs/demo/model"))
    _write_images(Path("images"), table.splitlines()[0].split(","))
    Path("labels.yaml").write_text(config, encoding="utf-8")
    tree: Any = yaml.safe_load(config)
    words = ["--set", "probabilities.least_per_class=2", "--set", "evaluate.bootstrap=20"]
    assert main(["--config", "labels.yaml", *words]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    shown = json.loads(re.findall(r"^    (\{.*\})$", page, re.MULTILINE)[0])
    heads = [line for line in lines if "head" in line]
    assert [line["head"] for line in heads] == tree["source"]["findings"]
    assert set(heads[0]) == set(shown)
    assert heads[0]["auc"] == 1.0  # the upper half is bright in half of them
    assert read_heads(Path("runs/demo/model")) == ()
    exec(code.replace("0001.dcm", "0001.png"), {})
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == tree["source"]["findings"]
    assert said[0].split()[2] == "True"


def _write_images(folder: Path, columns: list[str]) -> None:
    (folder / "a").mkdir(parents=True)
    rows = []
    for number, pixels in enumerate(random_images(PATIENTS, 64), start=1):
        shown = number % 2
        pixels = pixels // 2
        pixels[:32] += 120 * shown
        name = f"a/{number:04d}.png"
        (folder / name).write_bytes(raster_bytes(pixels, "png"))
        rows.append([name, f"p{number:03d}", shown, "" if number % 5 == 0 else number % 3 // 2])
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([columns, *rows])
