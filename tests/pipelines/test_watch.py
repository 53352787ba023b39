"""A run's curves in a terminal."""

import json
from pathlib import Path

import pytest

from pipelines.watch import main, sparkline


def test_a_curve_is_as_wide_as_asked_and_as_high_as_its_values() -> None:
    assert sparkline([0.0, 7.0, 3.5, 0.0]) == "▁█▅▁"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([0.0, 2.0, 6.0, 8.0], width=2) == "▁█"  # means 1 and 7
    assert len(sparkline([*range(1000)])) == 48


def test_a_run_is_drawn_by_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 4
    assert "has no log of training yet" in capsys.readouterr().err
    (tmp_path / "checkpoints").mkdir()
    lines = [{"step": 10 * step, "loss": 4.0 / step, "skipped": 0} for step in (1, 2, 4)]
    log = tmp_path / "checkpoints/metrics.jsonl"
    log.write_text("\n".join(map(json.dumps, lines)))
    assert main([str(tmp_path), "--once"]) == 0
    shown = capsys.readouterr().out
    assert f"{tmp_path.name}: step 40" in shown
    assert shown.split("curve")[1].split() == ["loss", "4", "1", "█▃▁"]
