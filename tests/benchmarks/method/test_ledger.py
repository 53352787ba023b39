"""A stopped benchmark goes on where it was."""

from pathlib import Path

from benchmarks.method.run_log import Run, RunLog

RUN = Run("phantom", "", "infonce", 3)


def test_a_finished_run_is_not_done_again(tmp_path: Path) -> None:
    path = tmp_path / "work" / "runs.jsonl"
    RunLog(path).measure(RUN, lambda: {"auc": 0.75})
    again = RunLog(path)
    again.measure(RUN, lambda: {"auc": 0.0})
    assert again.of("phantom", "")["infonce"][3]["auc"] == 0.75
    assert again.of("phantom", "other") == {}


def test_a_line_that_a_kill_cut_short_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    RunLog(path).measure(RUN, lambda: {"auc": 0.75})
    whole = path.read_text()
    path.write_text(whole + whole[:20])
    run_log = RunLog(path)
    assert list(run_log.figures) == [RUN]
    run_log.measure(Run("phantom", "", "infonce", 4), lambda: {"auc": 0.5})
    assert len(RunLog(path).figures) == 2
