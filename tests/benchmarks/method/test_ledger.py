"""A stopped benchmark goes on where it was."""

from pathlib import Path

from benchmarks.method.run_log import Ledger, Run

RUN = Run("phantom", "", "infonce", 3)


def test_a_finished_run_is_not_done_again(tmp_path: Path) -> None:
    path = tmp_path / "work" / "runs.jsonl"
    Ledger(path).measure(RUN, lambda: {"auc": 0.75})
    again = Ledger(path)
    again.measure(RUN, lambda: {"auc": 0.0})
    assert again.of("phantom", "")["infonce"][3]["auc"] == 0.75
    assert again.of("phantom", "other") == {}


def test_a_line_that_a_kill_cut_short_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    Ledger(path).measure(RUN, lambda: {"auc": 0.75})
    whole = path.read_text()
    path.write_text(whole + whole[:20])
    ledger = Ledger(path)
    assert list(ledger.figures) == [RUN]
    ledger.measure(Run("phantom", "", "infonce", 4), lambda: {"auc": 0.5})
    assert len(Ledger(path).figures) == 2
