import numpy as np

from medclip_dcl.evaluation.compare import compare_measured, describe_difference, side_estimates

RUNS = np.tile([[0.50], [0.51], [0.52]], (1, 41))


def test_a_verdict_knows_of_which_figures_less_is_better():
    a = {"grounding.miou": RUNS + 0.4, "boxes.median_rank": RUNS + 0.4, "boxes.recall": RUNS}
    b = dict.fromkeys(a, RUNS)
    found = compare_measured(a, b, (), np.random.default_rng(0))
    assert {name: describe_difference(name, item) for name, item in found.items()} == {
        "grounding.miou": "A is better",
        "boxes.median_rank": "B is better",
        "boxes.recall": "no difference shown",
    }


def test_what_counts_doubles_as_wrong_is_compared_when_it_is_asked_for():
    side = {"boxes.recall": RUNS, "boxes.own_recall": RUNS}
    assert list(compare_measured(side, side, (), np.random.default_rng(0))) == ["boxes.recall"]
    asked = compare_measured(side, side, ["boxes.own_recall"], np.random.default_rng(0))
    assert list(asked) == ["boxes.own_recall"]


def test_a_figure_that_a_run_lacks_has_no_verdict():
    a = {"x": np.full((2, 9), np.nan)}
    found = compare_measured(a, {"x": RUNS[:, :9]}, (), np.random.default_rng(0))
    assert describe_difference("x", found["x"]) == "not told"


def test_every_figure_of_a_recipe_has_its_interval_over_runs():
    found = side_estimates({"x": RUNS}, np.random.default_rng(0))["x"]
    assert found.low < 0.51 < found.high
