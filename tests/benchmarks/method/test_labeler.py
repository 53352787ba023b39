"""The reader keeps its level on real reports."""

import json
from pathlib import Path

import pytest

from benchmarks.method.labeler import Score, main


def test_scores_are_those_of_the_counts() -> None:
    score = Score(hits=6, false_alarms=2, misses=4)
    assert (score.positives, score.precision, score.recall) == (10, 0.75, 0.6)
    assert score.f1 == pytest.approx(2 * 0.75 * 0.6 / 1.35)


def test_without_data_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TEST_DATA", raising=False)
    assert main([]) == 1
    assert "TEST_DATA" in capsys.readouterr().err


@pytest.mark.real_data
def test_macro_f1_on_real_reports_meets_its_bar(
    test_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--held-out"]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["bars"]["macro_f1"]["met"]
    assert line["figures"]["macro_f1 concepts held out"] >= 0.90
    assert line["figures"]["macro_f1 findings held out"] >= 0.80
