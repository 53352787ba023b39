"""The goal is held against the strongest of its rivals, and only when all seeds are there."""

from pathlib import Path

from benchmarks.method import suites
from benchmarks.method.bars import GOAL, held_against
from benchmarks.method.run_log import Run, RunLog

METRICS = ("auc", "acc", "r1", "cnr")


def run_log_of(tmp_path: Path, seeds: tuple[int, ...], losses: int) -> RunLog:
    """The goal row wins in every metric, but for some seeds of AUC against one constant."""
    run_log = RunLog(tmp_path / "runs.jsonl")
    rows = {"infonce": 0.5, "infonce, early": 0.55, "const 0.05": 0.4, "const 0.1": 0.6, GOAL: 0.7}
    for row, value in rows.items():
        for index, seed in enumerate(seeds):
            figures = dict.fromkeys(METRICS, value)
            if row == "const 0.1" and index < losses:
                figures["auc"] = 0.8
            run_log.measure(Run(suites.PHANTOM, "", row, seed), lambda figures=figures: figures)
    return run_log


def test_goal_asks_for_seven_wins_over_every_rival(tmp_path: Path) -> None:
    figures, bars = held_against(run_log_of(tmp_path, suites.PHANTOM_SEEDS, losses=2))
    assert figures["phantom goal auc, fewest wins"] == 6
    assert not bars["phantom goal auc, fewest wins"][1]
    assert figures["phantom goal acc, fewest wins"] == 8
    assert bars["phantom goal acc, fewest wins"][1]


def test_unfinished_runs_meet_no_bar(tmp_path: Path) -> None:
    _, bars = held_against(run_log_of(tmp_path, suites.PHANTOM_SEEDS[:7], losses=0))
    assert bars == {}
