import numpy as np
import pytest

from medclip_dcl.metrics.summary import (
    UNKNOWN,
    chance_levels,
    finding_figures,
    mean_figures,
    mean_finding_figures,
    rank_figures,
)

MARGINS = np.array([[0.4, -0.1, 0.2, -0.3], [0.1, 0.2, 0.3, 0.4]])
TRUTH = np.array([[1, 1, 0, 0], [1, UNKNOWN, 0, 1]], dtype=np.int8)
SUBJECTS = ["a", "b", "c", "d"]


def generator():
    return np.random.default_rng(0)


def test_films_of_unknown_truth_are_left_out_of_a_finding():
    figures = finding_figures(MARGINS[1], TRUTH[1], SUBJECTS, 0, generator())
    assert figures["auc"].value == 0.5  # .1 < .3 < .4
    assert (figures["auc"].n, figures["auc"].subjects) == (3, 3)
    assert figures["accuracy"].value == pytest.approx(2 / 3)
    assert figures["balanced_accuracy"].value == 0.5


def test_a_finding_of_one_class_says_why_it_has_no_figure():
    truth = np.array([0, 0, UNKNOWN, 0], dtype=np.int8)
    figures = finding_figures(MARGINS[0], truth, SUBJECTS, 10, generator())
    assert figures["auc"].value is None
    assert "two classes" in figures["auc"].reason
    assert figures["accuracy"].value == pytest.approx(2 / 3)


def test_the_mean_is_over_findings_that_have_both_classes():
    truth = np.vstack([TRUTH, np.zeros((1, 4), dtype=np.int8)])
    margins = np.vstack([MARGINS, np.ones((1, 4))])
    figure = mean_finding_figures(margins, truth, SUBJECTS, 100, generator())["mean_auc"]
    assert figure.value == pytest.approx((0.75 + 0.5) / 2)
    assert 0 <= figure.low <= figure.high <= 1


def test_no_labels_at_all_give_no_mean():
    truth = np.full((2, 4), UNKNOWN, dtype=np.int8)
    figure = mean_finding_figures(MARGINS, truth, SUBJECTS, 10, generator())["mean_auc"]
    assert (figure.value, figure.reason) == (None, "no finding has films of both classes")


def test_undefined_units_are_left_out_of_a_mean():
    columns = {"cnr": [1.0, None, 3.0, 2.0], "none": [None] * 4}
    figures = mean_figures(columns, SUBJECTS, 0, generator())
    assert figures["cnr"].value == 2.0
    assert figures["none"].value is None


def test_rank_figures_by_hand():
    figures = rank_figures(np.array([1, 3, 7, 2]), (1, 5), SUBJECTS, 50, generator())
    assert figures["recall_at_1"].value == 0.25
    assert figures["recall_at_5"].value == 0.75
    assert figures["median_rank"].value == 2.5
    assert figures["recall_at_5"].low <= 0.75 <= figures["recall_at_5"].high


def test_chance_is_given_for_every_direction_and_length():
    correct = {"there": np.eye(10, dtype=bool), "back": np.ones((3, 4), dtype=bool)}
    assert chance_levels(correct, (1, 5)) == {
        "there.recall_at_1": pytest.approx(0.1),
        "there.recall_at_5": pytest.approx(0.5),
        "back.recall_at_1": 1.0,
        "back.recall_at_5": 1.0,
    }
    assert chance_levels({"": np.eye(10, dtype=bool)}, (1,)) == {"recall_at_1": pytest.approx(0.1)}
