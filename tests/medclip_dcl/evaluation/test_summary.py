import numpy as np
import pytest

from medclip_dcl.evaluation.summary import (
    UNKNOWN,
    class_figures,
    finding_figures,
    mean_figures,
    mean_finding_figures,
    rank_figures,
    retrieval_figures,
)

MARGINS = np.array([[0.4, -0.1, 0.2, -0.3], [0.1, 0.2, 0.3, 0.4]])
TRUTH = np.array([[1, 1, 0, 0], [1, UNKNOWN, 0, 1]], dtype=np.int8)
SUBJECTS = ["a", "b", "c", "d"]


def generator():
    return np.random.default_rng(0)


def test_images_of_unknown_truth_are_left_out_of_a_finding():
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
    assert (figure.value, figure.reason) == (None, "no finding has images of both classes")


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


def test_recall_of_both_directions_is_the_mean_of_six():
    # Table 5 by hand: I->T .10 .31 .48, T->I .10 .33 .50 of 100 queries; medians 106 and 102.
    def ranks(shares, median):
        first, second, third = (round(100 * share) for share in shares)
        counts = [first, second - first, third - second, 100 - third]
        return np.repeat([10, 50, 100, median], counts)

    pairs = {
        "there": (ranks((0.10, 0.31, 0.48), 106), np.full(100, 7)),
        "back": (ranks((0.10, 0.33, 0.50), 102), np.full(100, 9)),
    }
    subjects = [str(row) for row in range(100)]
    figures, groups = retrieval_figures(pairs, (1, 10, 50, 100), subjects, 0, generator())
    assert figures["recall"].value == pytest.approx(1.82 / 6)
    assert figures["own_recall"].value == 1.0
    assert figures["own_median_rank"].value == 8.0
    assert figures["median_rank"].value == (106 + 101) / 2  # the 50th of 100 is rank 100
    assert groups["back"]["recall_at_50"].value == 0.33
    assert groups["there"]["own_recall_at_1"].value == 0.0


def test_classes_by_hand():
    answers, shown = np.array([0, 1, -1, 2, 2]), np.array([0, 1, 1, 2, 0])
    figures, recalls = class_figures(answers, shown, [0, 1, 2], list("abcde"), 20, generator())
    assert figures["accuracy"].value == 0.6
    assert figures["mean_recall"].value == pytest.approx((0.5 + 0.5 + 1) / 3)
    assert recalls[2].value == 1.0
