"""The parts of the benchmark of real studies that have an answer by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.method.real_boxes import interval, mean_boxes
from benchmarks.method.real_studies.losses import CHANGES
from benchmarks.method.real_studies.questions import QUESTIONS, judge
from benchmarks.method.real_studies.runs import ROWS, Run, do_run, missing
from benchmarks.method.real_studies.studies import Fold, read_folds, read_patients
from benchmarks.method.real_studies.styles import STYLES, dictated, shorthand, template
from medclip_dcl.training.trainer import StopRequest
from tests.support.public_sets import write_image

SENTENCES = ["There is a left pleural effusion.", "No pneumothorax or focal consolidation."]


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (shorthand, "L eff, no ptx or focal cons"),
        (template, "Left pleural effusion? YES\nPneumothorax? NO\nFocal consolidation? NO"),
        (dictated, "there is a left pleural effusion no pneumothorax or focal consolidation"),
    ],
)
def test_reports_are_rewritten(write: object, text: str) -> None:
    assert callable(write)
    assert write(SENTENCES) == text


def test_rows_name_what_there_is() -> None:
    for row in ROWS.values():
        assert row.get("change", "shuffled") in CHANGES
        assert row.get("style", "dictated") in STYLES


def test_runs_that_the_log_has_are_not_done_again(tmp_path: Path) -> None:
    runs, log = [Run("mates", 0, 0), Run("mates", 1, 0), Run("infonce", 3, 1)], tmp_path / "log"
    assert missing(runs, log) == runs
    log.write_text(json.dumps({"run": runs[1].name}) + "\n")
    assert missing(runs, log) == [runs[0], runs[2]]


def test_sides_are_judged_by_their_margin() -> None:
    truth = np.zeros((11, 4), dtype=bool)
    truth[0, :2] = True
    scores = np.zeros((22, 4))
    scores[0], scores[1] = [4.0, 1.0, 2.0, 0.0], [0.0, 0.0, 3.0, 3.0]  # margins 4 1 -1 -3
    figures = judge(scores, truth)
    assert figures["findings"]["Atelectasis"]["auc"] == 1.0
    assert figures["mean_auc"] == 1.0  # the others have no image with the finding


def test_boxes_meet_the_mean_of_the_other_half_alone() -> None:
    left = np.zeros((128, 128), dtype=bool)
    left[40:60, 10:30] = True
    right = left[:, ::-1].copy()
    masks = {("mass", name): mask for name, mask in zip("abcd", (left, right) * 2, strict=True)}
    judged = mean_boxes(masks)  # halves a c, b d: each meets the mirror image
    assert all(pointed is False for _, pointed in judged.values())
    masks = {("mass", name): left for name in "abcd"}
    assert all(pointed for _, pointed in mean_boxes(masks).values())


def test_an_interval_draws_images_and_not_sentences() -> None:
    mean, low, high = interval({"a": [1.0, 1.0, 1.0], "b": [0.0]})
    assert (mean, low, high) == (0.75, 0.0, 1.0)


@pytest.fixture
def folds(tmp_path: Path) -> list[Fold]:
    """Forty patients, half of them with an effusion, and a few steps of everything."""
    root, lines = tmp_path / "openi", []
    for uid in range(1, 41):
        name = f"{uid}_IM-{uid:04}-1001"
        write_image(root / "images" / f"{name}.png")
        shown = {finding.name: False for finding in QUESTIONS} | {"Effusion": uid % 2 == 0}
        line = {
            "uid": uid,
            "findings": f"There is {'a' if uid % 2 == 0 else 'no'} left pleural effusion.",
            "impression": f"Compared with study {uid}, the heart is normal.",
            "images": [{"filename": f"{name}.dcm.png", "projection": "Frontal"}],
            "gold": {finding: int(value) for finding, value in shown.items()},
        }
        lines.append(json.dumps(line))
    (root / "reports.jsonl").write_text("\n".join(lines), encoding="utf-8")
    few = ("images.size_px=32", "model.image.input_px=32", "language_model.steps=2",
           "language_model.vocabulary=200", "train.global_batch=4", "train.steps=2",
           "train.warmup_steps=1")  # fmt: skip
    work = tmp_path / "work"
    return [replace(fold, settings=few) for fold in read_folds(root, work, read_patients(root))]


def test_a_row_is_trained_and_asked(folds: list[Fold], tmp_path: Path) -> None:
    line = do_run(folds, Run("relations", 0, 0), tmp_path)
    assert line["run"] == Run("relations", 0, 0).name
    figures, tested = line["figures"], len(folds[0].tested)
    assert figures["findings"]["Effusion"]["images"] == sum(
        patient.gold["Effusion"] for patient in folds[0].tested
    )
    assert 0 <= figures["several_prompts"]["findings"]["Effusion"]["auc"] <= 1
    assert figures["retrieval"]["studies"] == tested == 8
    assert (tmp_path / "runs/relations-0-0/model").is_dir()  # for boxes


def test_a_run_that_is_told_to_stop_has_no_figures(folds, tmp_path, monkeypatch):
    monkeypatch.setattr(
        StopRequest, "__enter__", lambda request: vars(request).update(requested=True) or request
    )
    with pytest.raises(SystemExit, match="reader of fold 1 was stopped"):
        do_run(folds, Run("reader", 1, 0), tmp_path)
