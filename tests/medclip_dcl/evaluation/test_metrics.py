from dataclasses import asdict
from functools import partial

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    f1_score,
    label_ranking_average_precision_score,
    matthews_corrcoef,
    precision_score,
    recall_score,
    roc_auc_score,
)

from medclip_dcl.core.errors import MetricError
from medclip_dcl.evaluation.metrics import (
    BootstrapOptions,
    average_precision,
    balanced_accuracy,
    best_ranks,
    brier_score,
    calibration_error,
    chance_recall,
    confusion_metrics,
    estimate,
    mean,
    median,
    patient_weights,
    pearson_correlation,
    recall_at,
    roc_auc,
    summarise,
    value_of,
)


def truth(*values):
    return np.array(values, dtype=bool)


OF_SCORES = {
    roc_auc: roc_auc_score,
    average_precision: average_precision_score,
    brier_score: brier_score_loss,
}
OF_CALLS = {
    "sensitivity": recall_score,
    "specificity": partial(recall_score, pos_label=False),
    "ppv": precision_score,
    "npv": partial(precision_score, pos_label=False),
    "f1": f1_score,
    "mcc": matthews_corrcoef,
    "balanced accuracy": balanced_accuracy_score,
}


@pytest.mark.parametrize("seed", range(10))
def test_figures_agree_with_scikit_learn_on_tied_scores_in_every_sample(seed):
    generator = np.random.default_rng(seed)
    scores, positive = generator.integers(0, 9, 60) / 9, generator.random(60) < 0.3
    weights = patient_weights(60, 5, generator)
    for metric, oracle in OF_SCORES.items():
        expected = [oracle(positive, scores, sample_weight=row) for row in weights]
        assert metric(scores, positive, weights) == pytest.approx(expected, abs=1e-12)
    # The threshold itself is called present, a margin of 0 absent.
    figures = confusion_metrics(scores, positive, 4 / 9, weights)
    figures["balanced accuracy"] = balanced_accuracy(scores - 3 / 9, positive, weights)
    for name, oracle in OF_CALLS.items():
        expected = [oracle(positive, scores >= 4 / 9, sample_weight=row) for row in weights]
        assert figures[name] == pytest.approx(expected, abs=1e-12), name


def test_areas_and_calls_that_are_all_alike_by_hand():
    # Pairs (positive, negative): .8>.6, .8>.1, .3<.6, .3>.1 -> 3 of 4.
    assert roc_auc(np.array([0.8, 0.3, 0.6, 0.1]), truth(1, 1, 0, 0)) == [0.75]
    # Ranked: hit (1/1), miss, hit (2/3) -> mean of the precisions at both hits.
    scores = np.array([0.9, 0.5, 0.4])
    assert average_precision(scores, truth(1, 0, 1))[0] == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision(np.zeros(4), truth(1, 0, 0, 0)) == [0.25]  # ties: the prevalence
    assert value_of(average_precision(scores, truth(0, 0, 0))) is None
    for metric in (roc_auc, balanced_accuracy):  # they need both classes
        for positive in (truth(1, 1, 1), truth(0, 0, 0)):
            assert value_of(metric(scores, positive)) is None
    scores, positive = np.array([0.2, 0.8]), truth(0, 1)
    low, high = (confusion_metrics(scores, positive, level) for level in (0.1, 0.9))
    assert low["mcc"] == high["mcc"] == [0.0]
    assert np.isnan([low["npv"][0], high["ppv"][0]]).all()
    assert (low["ppv"], high["npv"], high["f1"]) == ([0.5], [0.5], [0.0])


@pytest.mark.usefixtures("unchecked_shapes")
def test_data_that_are_not_one_finite_number_of_each_per_image_are_refused():
    pair, square = truth(1, 0), np.zeros((2, 2))
    for metric, *data, message in (
        (roc_auc, np.array([0.1, np.nan]), pair, "1 scores are not finite"),
        (roc_auc, square, square > 0, "one of each per image"),
        (calibration_error, np.array([-0.1, 0.5]), pair, "not a number in"),
        (calibration_error, np.array([0.5, 1.1]), pair, "not a number in"),
        (calibration_error, np.array([0.5, np.nan]), pair, "not a number in"),
        (calibration_error, square, square > 0, "one of each per image, and a bin"),
        (calibration_error, np.zeros(3), pair, "one of each per image, and a bin"),
        (calibration_error, np.zeros(2), pair, None, 0, "one of each per image, and a bin"),
        (best_ranks, np.zeros((2, 3)), np.ones((2, 1), dtype=bool), "differ in shape"),
        (pearson_correlation, np.array([np.nan, 1]), np.array([0.0, 1]), "not finite"),
    ):
        with pytest.raises(MetricError, match=message):
            metric(*data)


WEIGHTS = np.array([[1, 1, 1, 1], [2, 0, 1, 1], [0, 0, 4, 0]])


def test_weighted_mean_and_median_by_hand_leave_undefined_units_out():
    found = mean(np.array([1.0, 5.0, np.nan, 4.0]), WEIGHTS)
    assert found[:2].tolist() == [10 / 3, 2.0]  # (1 + 5 + 4) / 3; (1 + 1 + 4) / 3
    assert np.isnan(found[2])
    values = np.array([4.0, 1.0, 3.0, 2.0])
    assert median(values, WEIGHTS).tolist() == [2.5, 3.5, 3.0]  # 1234, 2344, 3333
    assert np.isnan(median(np.zeros(0), np.zeros((3, 0), dtype=int))).all()


@pytest.mark.parametrize("seed", range(5))
def test_weights_give_what_repeated_rows_give(seed):
    generator = np.random.default_rng(seed)
    scores, positive = generator.integers(-4, 5, 40) / 4, generator.random(40) < 0.3
    said = generator.random(40)
    weights = patient_weights(40, 30, generator)
    rows = [np.repeat(np.arange(40), row) for row in weights]
    for of, *data in (calibration_error, said, positive), (mean, scores), (median, scores):
        repeated = [of(*(column[row] for column in data))[0] for row in rows]
        assert of(*data, weights) == pytest.approx(repeated, abs=1e-12), of.__name__


SAID = np.array([0.1, 0.2, 0.2, 0.7, 0.9, 1.0])
TRUE = np.array([False, False, True, True, True, False])


def test_the_error_is_the_one_worked_out_by_hand_and_an_edge_belongs_to_the_bin_above_it():
    # two bins: [0, .5) says 1/6 and finds 1/3; [.5, 1] says 2.6/3 and finds 2/3
    halves = calibration_error(SAID, TRUE, bins=2)[0]
    assert halves == pytest.approx(0.5 * (0.5 + 0.6) / 3, rel=1e-12)
    assert brier_score(SAID, TRUE)[0] == pytest.approx((0.01 + 0.04 + 0.64 + 0.09 + 0.01 + 1) / 6)
    # .05 and .1 are in two bins: (.95 + .1) / 2; in one they would err by (.95 - .1) / 2
    found = calibration_error(np.array([0.05, 0.1]), np.array([True, False]))
    assert found[0] == pytest.approx(1.05 / 2)


def test_bins_agree_with_scikit_learn():
    rng = np.random.default_rng(0)
    said = rng.uniform(size=500)
    true = rng.uniform(size=500) < said**2
    shares, means = calibration_curve(true, said, n_bins=10, strategy="uniform")
    sizes = np.histogram(said, bins=10, range=(0, 1))[0]
    expected = (sizes * np.abs(shares - means)).sum() / 500
    assert calibration_error(said, true)[0] == pytest.approx(expected, abs=1e-12)


def test_correlation_by_hand_and_none_without_spread():
    x = np.array([1.0, 2, 3])
    assert pearson_correlation(x, np.array([1.0, 3, 2])) == pytest.approx(0.5)
    assert pearson_correlation(x, 1 - 2 * x) == pytest.approx(-1.0)
    assert pearson_correlation(x, np.full(3, 0.2)) is None
    assert pearson_correlation(np.zeros(0), np.zeros(0)) is None


SCORES = np.array([[0.9, 0.1, 0.5], [0.2, 0.8, 0.3], [0.7, 0.6, 0.1]])
DIAGONAL = np.eye(3, dtype=bool)


def test_ranks_of_a_literal_matrix_recall_and_median_by_hand_and_ties_rank_last():
    assert best_ranks(SCORES, DIAGONAL).tolist() == [1, 1, 3]
    assert best_ranks(np.zeros((2, 5)), np.eye(2, 5, dtype=bool)).tolist() == [5, 5]
    ranks = np.array([1, 1, 3, 10])
    assert [recall_at(ranks, k)[0] for k in (1, 2, 3, 10)] == [0.5, 0.5, 0.75, 1.0]
    assert median(ranks) == [2.0]


def test_ranks_agree_with_scikit_learn_where_one_item_is_correct_and_chance_by_hand():
    # With one correct item per query the mean reciprocal rank is the label ranking precision.
    generator = np.random.default_rng(5)
    scores = generator.random((40, 12))
    correct = np.eye(12, dtype=bool)[generator.integers(12, size=40)]
    expected = label_ranking_average_precision_score(correct, scores)
    assert (1 / best_ranks(scores, correct)).mean() == pytest.approx(expected, abs=1e-9, rel=0)
    # 2 of 4 correct, list of 2: 1 - C(2,2)/C(4,2) = 5/6; a list longer than the pool finds all.
    correct = np.array([[1, 1, 0, 0]], dtype=bool)
    assert chance_recall(correct, 2) == pytest.approx(5 / 6)
    assert chance_recall(correct, 9) == 1.0


SUBJECTS = ["a", "a", "b", "c", "d", "e", "f", "g"]
VALUES = np.arange(8.0)


def mean_of(values, subjects, samples, undefined=""):
    options = BootstrapOptions(samples, seed=1)
    return estimate(lambda each: {"mean": mean(values, each)}, subjects, options, undefined)["mean"]


def test_the_interval_of_a_mean_has_its_known_width_whatever_a_patient_repeats():
    values = np.random.default_rng(0).normal(size=400)
    figure = mean_of(values, [str(index) for index in range(400)], 2000)
    assert figure.value == pytest.approx(values.mean())
    assert (figure.high - figure.low) / 2 == pytest.approx(1.96 / 20, rel=0.1)
    assert (figure.n, figure.subjects, figure.reason) == (400, 400, "")
    values = np.random.default_rng(0).normal(size=50)
    once, often = (
        mean_of(np.repeat(values, copies), [str(i) for i in np.repeat(np.arange(50), copies)], 500)
        for copies in (1, 8)
    )
    assert (often.low, often.high) == pytest.approx((once.low, once.high))


def test_the_interval_is_that_of_rows_repeated_as_often_as_they_are_drawn():
    figure = mean_of(VALUES, SUBJECTS, 200)
    generator, names = np.random.default_rng(1), np.array(SUBJECTS)
    patients, drawn = sorted(set(SUBJECTS)), []
    for _ in range(200):
        chosen = generator.integers(7, size=7)
        rows = np.concatenate([np.flatnonzero(names == patients[index]) for index in chosen])
        drawn.append(VALUES[rows].mean())
    assert (figure.n, figure.subjects) == (8, 7)
    assert [figure.low, figure.high] == pytest.approx(np.quantile(drawn, [0.025, 0.975]).tolist())


def test_undefined_vanishing_and_lonely_figures_have_no_interval():
    figure = mean_of(np.array([np.nan, np.nan]), ["a", "b"], 20, undefined="no positives")
    absent = dict.fromkeys(("value", "low", "high"))
    assert asdict(figure) == absent | {"n": 2, "subjects": 2, "reason": "no positives"}

    def rare(weights):
        return {"rare": np.where((weights == 1).all(axis=1), 1.0, np.nan)}

    figure = estimate(rare, list("abcd"), BootstrapOptions(200, 0), "")["rare"]
    assert (figure.value, figure.low, figure.high) == (1.0, None, None)
    half = summarise(np.array([0.5, 0.4, np.nan]), SUBJECTS, "no images")
    assert (half.value, half.low) == (0.5, None)
    figure = mean_of(np.ones(3), ["a"] * 3, 100)
    assert (figure.value, figure.low) == (1.0, None)
    figure = mean_of(np.array([1.0, 2.0]), ["a", "b"], 100)
    assert (figure.value, figure.low, figure.high) == (1.5, 1.0, 2.0)
    with pytest.raises(MetricError, match="0 patients"):
        patient_weights(0, 10, np.random.default_rng(0))
    with pytest.raises(MetricError, match="-1 bootstrap samples"):
        mean_of(np.ones(1), ["a"], -1)
