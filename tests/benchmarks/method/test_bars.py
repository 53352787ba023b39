"""The goal is held against the strongest of its rivals, and only when all seeds are there."""

import pytest

from benchmarks.method import suites
from benchmarks.method.bars import GOAL, Figures, held_against
from benchmarks.record import Bars, judge
from benchmarks.run_log import Run, RunLog

METRICS = ("auc", "acc", "r1", "cnr")


def judged(run_log: RunLog) -> tuple[Figures, Bars]:
    figures, bars = held_against(run_log)
    return figures, judge(figures, bars)


def run_log_of(seeds: tuple[int, ...], losses: int) -> RunLog:
    """The goal row wins in every metric, but for some seeds of AUC against one constant."""
    run_log = RunLog(None, "")
    rows = {"infonce": 0.5, "infonce, early": 0.55, "const 0.05": 0.4, "const 0.1": 0.6, GOAL: 0.7}
    for row, value in rows.items():
        for index, seed in enumerate(seeds):
            figures = dict.fromkeys(METRICS, value)
            if row == "const 0.1" and index < losses:
                figures["auc"] = 0.8
            run_log.once(Run(suites.PHANTOM, "", row, seed).trial, lambda figures=figures: figures)
    return run_log


def test_goal_asks_for_seven_wins_over_every_rival() -> None:
    figures, bars = judged(run_log_of(suites.PHANTOM_SEEDS, losses=2))
    assert figures["phantom goal auc, fewest wins"] == 6
    assert not bars["phantom goal auc, fewest wins"][1]
    assert figures["phantom goal acc, fewest wins"] == 8
    assert bars["phantom goal acc, fewest wins"][1]


def test_unfinished_runs_meet_no_bar() -> None:
    _, bars = judged(run_log_of(suites.PHANTOM_SEEDS[:7], losses=0))
    assert bars == {}


def test_cross_is_stopped_by_reports_and_held_against_the_best_rival() -> None:
    """Every rival is worse at the length that its reports choose, better at the other."""
    run_log = RunLog(None, "")
    for setting, gain, report in ((suites.SHORT, 0.0, 0.9), (suites.LONG, 0.5, 0.8)):
        for row, value in {"infonce": 0.5, "const 0.1": 0.6, "cross": 0.7}.items():
            shift = gain if row != "cross" else -gain
            for seed in suites.CROSS_SEEDS:
                figures = dict.fromkeys((*METRICS, "r5", "map"), value + shift)
                figures["report auc"] = report
                run = Run(suites.CROSS_PHANTOM, setting, row, seed)
                run_log.once(run.trial, lambda figures=figures: figures)
    figures, bars = judged(run_log)
    assert figures["phantom_cross_wins_min"] == 8
    assert bars["phantom_cross_wins_min"][1]


def pixel_runs(seeds: tuple[int, ...], losses: int) -> RunLog:
    """The two rivals lead in turn; `cross, place` beats both but for some seeds of pointing."""
    run_log = RunLog(None, "")
    for index, seed in enumerate(seeds):
        values = {"cross, place": 0.7, "infonce, both": 0.5, "const 0.1": 0.4}
        values["cross, place, shuffled"] = 0.2
        if index % 2:
            values |= {"infonce, both": 0.3, "const 0.1": 0.6}
        for row, value in values.items():
            figures = dict.fromkeys(suites.METRICS[suites.CROSS_STUDIES], value)
            if row == "const 0.1" and index < losses:
                figures["point"] = 0.8
            run = Run(suites.CROSS_STUDIES, "", row, seed)
            run_log.once(run.trial, lambda figures=figures: figures)
    return run_log


def test_places_are_held_against_the_better_rival_of_each_seed() -> None:
    figures, bars = judged(pixel_runs(suites.PIXELS_SEEDS, losses=2))
    assert figures["pixels_cross_place_wins_min"] == 6
    assert not bars["pixels_cross_place_wins_min"][1]
    assert figures["cross studies auc over the better rival"] == pytest.approx(0.15)
    assert figures["cross studies auc over the better rival, wins"] == 8
    assert figures["cross studies auc over const 0.1"] == pytest.approx(0.2)
    assert bars["cross studies cross, place, shuffled auc over infonce, both"][1]


def test_seven_seeds_of_pixels_meet_no_bar() -> None:
    figures, bars = judged(pixel_runs(suites.PIXELS_SEEDS[:7], losses=0))
    assert figures["cross studies r1 over the better rival, wins"] == 7
    assert bars == {}


@pytest.mark.parametrize(("seeds", "losses"), [(4, 0), (4, 1), (3, 0)])
def test_asserting_sentences_must_win_every_seed(seeds: int, losses: int) -> None:
    run_log = RunLog(None, "")
    suite = suites.ASSERTING_STUDIES
    for index, seed in enumerate(suites.ASSERTING_SEEDS[:seeds]):
        for row, value in (("cross, place", 0.5), (suites.GOALS[suite], 0.6)):
            figures = dict.fromkeys(suites.METRICS[suite], value)
            figures["r5"] = 0.0 if index < losses else value
            run_log.once(Run(suite, "", row, seed).trial, lambda figures=figures: figures)
    figures, bars = judged(run_log)
    assert figures["asserting studies auc over cross, place, wins"] == seeds
    if seeds < len(suites.ASSERTING_SEEDS):
        assert bars == {}
    else:
        assert bars["asserting studies r5 over cross, place, wins"][1] is (losses == 0)
        assert bars["asserting studies map over cross, place"][1]
