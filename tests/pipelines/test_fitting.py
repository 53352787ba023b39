"""What is fitted next to training: probabilities and heads, their reasons, and what is refused."""

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from medclip_dcl.core.tables import read_table
from medclip_dcl.data import manifest
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.decisions import share_changed
from medclip_dcl.inference import model_package
from medclip_dcl.inference.heads import Head, read_heads
from medclip_dcl.inference.model_package import ScoreCalibration, read_calibration
from medclip_dcl.inference.predictor import load
from pipelines.job import main_of
from tests.house.tree import ROOT
from tests.support.corpus import commit_tables
from tests.support.dicom import raster_bytes
from tests.support.jobs import made, rows, run_here, write_evaluated
from tests.support.published import publish
from tests.support.tiny_models import random_images


def model_of(work: Path) -> Any:
    return made(work, model_package.ARTIFACT)


# ---- Probabilities


@pytest.fixture
def work(decided: Path, tmp_path: Path) -> Path:
    return shutil.copytree(decided, tmp_path / "work")


def calibrated(work: Path, **settings: Any) -> ScoreCalibration:
    run_here("calibrate_scores", work, probabilities=settings)
    return read_calibration(model_of(work))


def flip(work: Path, split: str) -> None:
    """Turn the labels of pneumonia round in the studies of one split."""
    folder = manifest.ARTIFACT.at(work)
    forms = (manifest.IMAGES, manifest.REPORTS, manifest.STUDY_LABELS, manifest.BOXES)
    tables = {form: read_table(folder, form).to_pylist() for form in (*forms, manifest.REJECTS)}
    split_of = {row["study_id"]: row["split"] for row in tables[manifest.REPORTS]}
    for row in tables[manifest.STUDY_LABELS]:
        if split_of[row["study_id"]] == split:
            row["Pneumonia"] = 1 - row["Pneumonia"]
    commit_tables(work, manifest.ARTIFACT, tables, flip=split)


def test_a_finding_with_images_enough_gets_its_probability_and_others_their_reason(work, capsys):
    def outcome() -> dict[str, Any]:
        run_here("evaluate", work)
        return results.read_figures(made(work, results.ARTIFACT))["questions"]["probabilities"]

    assert "run calibrate_scores" in outcome()["absent"]
    before = model_of(work)
    effusion, pneumonia = calibrated(work).findings
    assert (effusion.images_with, effusion.images_without) == (0, 10)
    assert "0 validation images with it and 10 without" in effusion.reason
    assert (pneumonia.images_with, pneumonia.images_without, pneumonia.patients) == (4, 6, 8)
    assert '"calibrated": 1, "uncalibrated": 1, "refused": 0' in capsys.readouterr().out
    after = model_of(work)
    assert after.digest != before.digest
    assert after.fingerprint == before.fingerprint
    assert after.files[model_package.WEIGHTS] == before.files[model_package.WEIGHTS]
    predictor = load(work / "model", "cpu")
    regions = predictor.embed_images(random_images(3, 40))
    margin = predictor.margins(regions, predictor.findings)
    logits = (predictor.model.gamma**2 * margin).double().numpy()
    said = [answer[1].probability for answer in predictor.classify_regions(regions)]
    assert said == pneumonia.curve.probabilities(logits[1]).tolist()
    notes = [answer[0].probability_note for answer in predictor.classify_regions(regions)]
    assert notes == [effusion.reason] * 3

    groups = outcome()["groups"]
    assert set(groups) == {"pneumonia"}
    assert groups["pneumonia"]["brier"]["n"] == 10
    scores = rows(work, results.ARTIFACT, results.SCORES)
    asked = [row for row in scores if row["finding"] == "pneumonia"]
    logits = float(predictor.model.gamma.detach() ** 2) * np.array([row["margin"] for row in asked])
    expected = pneumonia.curve.probabilities(logits).tolist()
    assert [row["probability"] for row in asked] == pytest.approx(expected, rel=1e-6)
    assert all(row["probability"] is None for row in scores if row["finding"] == "effusion")


def test_decisions_that_bfloat16_changes_are_counted_where_it_is_fast(work, monkeypatch):
    monkeypatch.setattr("pipelines.fitting.multiplies_bfloat16", lambda: False)
    assert calibrated(work).changed_in_bfloat16 is None
    monkeypatch.setattr("pipelines.fitting.multiplies_bfloat16", lambda: True)
    found = calibrated(work, least_per_class=3).changed_in_bfloat16
    assert 20 * found == pytest.approx(round(20 * found))  # of ten images and two findings
    monkeypatch.setattr("medclip_dcl.models.settings.multiplies_bfloat16", lambda: True)
    taken = load(work / "model", "cpu", precision="auto").engine.precision
    assert taken == ("bfloat16" if found <= 0.01 else "float32")
    predictor = load(work / "model", "cpu")
    regions = predictor.embed_images(random_images(300, 40))
    here, there = (
        np.array([[item.decision for item in row] for row in predictor.classify_regions(each)])
        for each in (regions, -regions)
    )
    changed = share_changed(predictor, regions, predictor, -regions)
    assert changed == np.mean(here != there) > 0


def test_labels_of_test_images_have_no_part_in_it(work):
    first = calibrated(work)
    flip(work, "test")
    flip(work, "train")
    assert calibrated(work).findings == first.findings
    flip(work, "validate")
    assert calibrated(work).findings != first.findings


def test_a_second_run_leaves_the_model_and_another_setting_makes_it_anew(work, capsys):
    calibrated(work)
    digest = model_of(work).digest
    calibrated(work)
    assert '"state": "reused"' in capsys.readouterr().out
    assert model_of(work).digest == digest
    calibrated(work, least_per_class=3)
    assert model_of(work).digest != digest
    (work / "model").rename(work / ".model.retired")  # killed between two renames
    assert calibrated(work).findings
    publish(work / "model", ["p024"], seed=37, centred=True)
    run_here("calibrate_scores", work, code=4)
    assert "trained on 1 of 8" in capsys.readouterr().err


def warnings_in(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines() if '"warning"' in line]


def test_prompts_that_do_not_decide_are_refused_by_name_and_warned_of(evaluated, tmp_path, capsys):
    work = shutil.copytree(evaluated, tmp_path / "work")
    found = calibrated(work)
    assert all(item.is_refused and "do not decide" in item.reason for item in found.findings)
    printed = capsys.readouterr().out
    assert '"calibrated": 0, "uncalibrated": 2, "refused": 2' in printed
    warned = warnings_in(printed)
    assert [line["finding"] for line in warned] == ["effusion", "pneumonia"]
    for line, item in zip(warned, found.findings, strict=True):
        assert line["warning"].startswith(f"{line['finding']} is not calibrated: {item.reason}")
        assert "objective.relation: claims" in line["warning"]
        assert (line["correlation"], line["auc"]) == (item.correlation, item.auc)
    predictor = load(work / "model", "cpu")
    (answer,) = predictor.classify_regions(predictor.embed_images(random_images(1)))
    assert [score.probability for score in answer] == [None, None]
    assert [score.probability_note for score in answer] == [item.reason for item in found.findings]
    calibrated(work)
    printed = capsys.readouterr().out
    assert '"state": "reused"' in printed
    assert warnings_in(printed) == warned


# ---- Heads


def fit(work: Path, *settings: str, code: int = 0) -> dict[str, Head]:
    run_here("fit_head", work, *settings, code=code)
    return {head.card.name: head for head in read_heads(work / "model")}


def test_a_head_of_the_run_s_own_labels_goes_into_its_model(evaluated, tmp_path, capsys):
    work = shutil.copytree(evaluated, tmp_path / "work")
    before = model_of(work)
    (head,) = fit(work).values()  # no validation image has an effusion
    after = model_of(work)
    assert (head.card.name, head.card.kind) == ("Pneumonia", "linear")
    assert after.digest != before.digest
    assert before.files.items() <= after.files.items()
    assert set(after.files) - set(before.files) == {"heads.json", "heads.safetensors"}
    assert '"state": "made"' in capsys.readouterr().out
    fit(work)
    assert '"state": "reused"' in capsys.readouterr().out
    assert model_of(work).digest == after.digest
    assert [item.card for item in load(work / "model", "cpu").heads] == [head.card]


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
    assert main_of("fit_head")(["--config", "labels.yaml", *words]) == 0
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
    for number, pixels in enumerate(random_images(40, 64), start=1):
        shown = number % 2
        pixels = pixels // 2
        pixels[:32] += 120 * shown
        name = f"a/{number:04d}.png"
        (folder / name).write_bytes(raster_bytes(pixels, "png"))
        rows.append([name, f"p{number:03d}", shown, "" if number % 5 == 0 else number % 3 // 2])
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([columns, *rows])
