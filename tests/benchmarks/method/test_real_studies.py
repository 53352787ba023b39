"""The parts of the benchmark of real studies that have an answer by hand."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.method.real_boxes import interval, mean_boxes
from benchmarks.method.real_studies.losses import CHANGES, SigmoidRelations
from benchmarks.method.real_studies.questions import judge
from benchmarks.method.real_studies.runs import ROWS, Run, missing, read_jobs
from benchmarks.method.real_studies.styles import STYLES, dictated, shorthand, template
from medclip_dcl.losses.relations import DIFFERENT, SAME, UNCLEAR
from medclip_dcl.training.settings import ObjectiveConfig

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
        assert row.get("change", "head") in CHANGES
        assert row.get("style", "dictated") in STYLES


def test_jobs_that_the_log_has_are_not_done_again(tmp_path: Path) -> None:
    jobs, log = tmp_path / "jobs", tmp_path / "log.jsonl"
    jobs.write_text("# row folds seed\nmates 0,1 0\ninfonce 3 1 # last\n")
    assert missing(read_jobs(jobs), log) == [
        Run("mates", 0, 0), Run("mates", 1, 0), Run("infonce", 3, 1)
    ]  # fmt: skip
    log.write_text(json.dumps({"run": Run("mates", 1, 0).name}) + "\n")
    assert missing(read_jobs(jobs), log) == [Run("mates", 0, 0), Run("infonce", 3, 1)]


def test_a_sigmoid_judges_each_pair_and_leaves_unclear_ones_out() -> None:
    relation = torch.tensor([[DIFFERENT, SAME], [UNCLEAR, DIFFERENT]], dtype=torch.int8)
    objective = SigmoidRelations(ObjectiveConfig(kind="multipositive", relation="claims"), 0)
    objective.relation = lambda _batch, *, from_text: relation  # type: ignore[method-assign]
    encoder = SimpleNamespace(get_parameter=lambda _name: torch.tensor(0.0))
    s = torch.tensor([[2.0, 1.0], [9.0, -1.0]])
    # own pairs and SAME: log(1 + e^-s) of 2, 1 and -1: .126928, .313262, 1.313262; mean over texts
    loss = objective.contrast(s, encoder, None).loss  # type: ignore[arg-type]
    assert loss.item() == pytest.approx((0.126928 + 0.313262 + 1.313262) / 2, abs=1e-5)


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
