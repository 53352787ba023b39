"""Tables compare rows seed by seed, and pick the strongest constant."""

import pytest

from benchmarks.method.comparison import best_constant, paired, summary

RUNS = {
    "infonce": {1: {"auc": 0.5, "floor": 0.0}, 2: {"auc": 0.7, "floor": 0.0}},
    "const 0.1": {1: {"auc": 0.6, "floor": 0.5}, 2: {"auc": 0.6, "floor": 0.1}},
    "const 0.2": {1: {"auc": 0.8, "floor": 0.5}, 2: {"auc": 0.5, "floor": 0.1}},
    "claims": {2: {"auc": 0.9, "floor": 0.0}, 3: {"auc": 0.1, "floor": 0.0}},
}


def test_differences_are_taken_on_common_seeds() -> None:
    found = paired(RUNS, "const 0.1", "infonce", "auc")
    assert found is not None
    assert found.differences == pytest.approx((0.1, -0.1))
    assert (found.mean, found.wins) == (pytest.approx(0.0), 1)
    assert found.sd == pytest.approx(0.02**0.5)
    lone = paired(RUNS, "claims", "infonce", "auc")
    assert lone is not None
    assert lone.differences == pytest.approx((0.2,))
    assert paired(RUNS, "absent", "infonce", "auc") is None


def test_equal_is_no_win() -> None:
    found = paired(RUNS, "infonce", "infonce", "auc")
    assert found is not None
    assert found.wins == 0


def test_best_constant_has_the_best_mean() -> None:
    assert best_constant(RUNS, ("const 0.1", "const 0.2", "const 0.3"), "auc") == "const 0.2"
    assert best_constant(RUNS, (), "auc") is None


def test_summary_sets_every_row_against_both_rivals() -> None:
    cells = summary(RUNS, ("auc",), ("const 0.1", "const 0.2"))["const 0.1"]
    assert cells["seeds"] == [1, 2]
    assert cells["floor"] == 0.3
    mean, _, over_infonce, _, wins, over_best, _, wins_over_best = cells["auc"]
    assert (mean, over_infonce, wins) == (0.6, 0.0, 1)
    assert (over_best, wins_over_best) == (-0.05, 1)


def test_an_unfinished_constant_does_not_compete() -> None:
    runs = {**RUNS, "const 0.3": {1: {"auc": 0.99, "floor": 0.0}}}
    assert best_constant(runs, ("const 0.1", "const 0.2", "const 0.3"), "auc") == "const 0.2"
