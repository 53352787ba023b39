"""Several runs on one page."""

import json
from pathlib import Path

import pytest
from PIL import Image

from medclip_reporting.curves import RunRecord, render_runs
from pipelines.plot import main

FIGURE = {"value": 0.75, "low": 0.7, "high": 0.8}
QUESTION = {"absent": "", "figures": {"mean_auc": FIGURE}, "groups": {}, "chance": {}}


def test_runs_stand_side_by_side_with_their_curves_and_figures() -> None:
    names = ("zero_shot", "classes", "grounding", "gallery", "boxes", "reports")
    tree = {"questions": dict.fromkeys(names, QUESTION)}
    log = [{"step": step, "loss": 4.0 / step} for step in (1, 2)]
    page = render_runs([RunRecord("first", log, tree), RunRecord("second", log, None)])
    assert page.count("<svg") == 1  # no run has another curve
    assert "<b>Training loss, nats</b>" in page
    assert "<td>zero-shot AUC, mean of findings</td>" in page
    assert '0.750 <span class="range">[0.700, 0.800]</span>' in page
    assert "first, second" in page


def test_a_run_that_trains_is_drawn_and_an_empty_one_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert main([str(tmp_path), "--out", str(out)]) == 4
    assert "neither a log of training nor results" in capsys.readouterr().err
    (tmp_path / "checkpoints").mkdir()
    lines = [json.dumps({"step": step, "loss": 1.0}) for step in (1, 2)]
    (tmp_path / "checkpoints/metrics.jsonl").write_text("\n".join(lines))
    assert main([str(tmp_path), "--out", str(out)]) == 0
    assert "<svg" in out.read_text()
    picture = tmp_path / "curves.png"
    assert main([str(tmp_path), "--out", str(picture)]) == 0
    with Image.open(picture) as opened:
        assert opened.size == (1320, 408)  # one row of charts
    assert main([str(tmp_path)] * 6) == 2
