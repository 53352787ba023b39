import numpy as np
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score

from medclip_dcl.errors import MetricError
from medclip_dcl.evaluation.metrics import accuracy, balanced_accuracy, roc_auc, roc_curve


def truth(*values):
    return np.array(values, dtype=bool)


def test_auc_counts_ordered_pairs():
    # Pairs (positive, negative): .8>.6, .8>.1, .3<.6, .3>.1 -> 3 of 4.
    assert roc_auc(np.array([0.8, 0.3, 0.6, 0.1]), truth(1, 1, 0, 0)) == 0.75


def test_a_tie_counts_as_half():
    # .5=.5 counts .5, .5>.1 counts 1 -> 1.5 of 2.
    assert roc_auc(np.array([0.5, 0.5, 0.1]), truth(1, 0, 0)) == 0.75


def test_auc_of_a_constant_score_is_one_half():
    assert roc_auc(np.zeros(5), truth(1, 0, 0, 1, 0)) == 0.5


def test_auc_agrees_with_scikit_learn_on_tied_scores():
    generator = np.random.default_rng(1)
    for _ in range(20):
        scores = generator.integers(0, 7, 60) / 7
        positive = generator.random(60) < 0.3
        expected = roc_auc_score(positive, scores)
        assert roc_auc(scores, positive) == pytest.approx(expected, abs=1e-9, rel=0)


@pytest.mark.parametrize("positive", [truth(1, 1), truth(0, 0)])
def test_figures_that_need_both_classes_are_none_with_one(positive):
    scores = np.array([0.2, 0.4])
    assert roc_auc(scores, positive) is None
    assert roc_curve(scores, positive) is None
    assert balanced_accuracy(scores, positive) is None


def test_the_curve_encloses_the_area():
    generator = np.random.default_rng(2)
    scores, positive = generator.integers(0, 9, 80) / 9, generator.random(80) < 0.4
    false_rate, true_rate = roc_curve(scores, positive)
    assert (false_rate[0], true_rate[0], false_rate[-1], true_rate[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(true_rate, false_rate) == pytest.approx(roc_auc(scores, positive))


def test_accuracy_decides_at_zero_margin_and_zero_is_negative():
    margins = np.array([0.1, 0.0, -0.2, 0.3])
    assert accuracy(margins, truth(1, 0, 1, 0)) == 0.5  # right, right, wrong, wrong


def test_balanced_accuracy_weighs_both_classes_alike():
    margins = np.array([1.0, 1.0, 1.0, 1.0])  # always positive
    assert accuracy(margins, truth(1, 1, 1, 0)) == 0.75
    assert balanced_accuracy(margins, truth(1, 1, 1, 0)) == 0.5


def test_accuracies_agree_with_scikit_learn():
    generator = np.random.default_rng(3)
    for _ in range(20):
        margins, positive = generator.integers(-3, 4, 50) / 4, generator.random(50) < 0.4
        decided = margins > 0
        assert accuracy(margins, positive) == pytest.approx(
            accuracy_score(positive, decided), abs=1e-9, rel=0
        )
        assert balanced_accuracy(margins, positive) == pytest.approx(
            balanced_accuracy_score(positive, decided), abs=1e-9, rel=0
        )


def test_no_images_have_no_accuracy():
    assert accuracy(np.zeros(0), np.zeros(0, dtype=bool)) is None


def test_a_score_that_is_no_number_is_refused():
    with pytest.raises(MetricError, match="1 scores are not finite"):
        roc_auc(np.array([0.1, np.nan]), truth(1, 0))


@pytest.mark.usefixtures("unchecked_shapes")
def test_lengths_must_agree():
    with pytest.raises(MetricError, match="do not fit"):
        accuracy(np.zeros(3), truth(1, 0))
