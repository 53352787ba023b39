import math

import numpy as np
import pytest
from sklearn.metrics import (
    average_precision_score,
    confusion_matrix,
    f1_score,
    matthews_corrcoef,
    roc_curve,
)

from medclip_dcl.evaluation.bootstrap import BootstrapOptions, Figure, patient_weights
from medclip_dcl.evaluation.classification import UNKNOWN
from medclip_dcl.evaluation.metrics import average_precision, confusion_metrics, value_of
from medclip_dcl.evaluation.operating_point import (
    AT_THRESHOLD,
    ThresholdRule,
    choose_thresholds,
    evaluate_decisions,
)

NO_DRAWS = BootstrapOptions(0, 0)


def truth(*values):
    return np.array(values, dtype=bool)


def tied_scores(generator, count=60):
    return generator.integers(0, 9, count) / 9, generator.random(count) < 0.3


def expected(positive, called, weights=None):
    (tn, fp), (fn, tp) = confusion_matrix(
        positive, called, labels=[False, True], sample_weight=weights
    )
    return {
        "sensitivity": tp / (tp + fn),
        "specificity": tn / (tn + fp),
        "ppv": tp / (tp + fp),
        "npv": tn / (tn + fn),
        "f1": f1_score(positive, called, sample_weight=weights),
        "mcc": matthews_corrcoef(positive, called, sample_weight=weights),
    }


def test_figures_at_a_threshold_agree_with_scikit_learn_in_every_sample():
    generator = np.random.default_rng(0)
    for _ in range(10):
        scores, positive = tied_scores(generator)
        weights = patient_weights(len(scores), 5, generator)
        found = confusion_metrics(scores, positive, 4 / 9, weights)
        auprc = average_precision(scores, positive, weights)
        for row, weight in enumerate(weights):
            for name, value in expected(positive, scores >= 4 / 9, weight).items():
                assert found[name][row] == pytest.approx(value, abs=1e-9)
            area = average_precision_score(positive, scores, sample_weight=weight)
            assert auprc[row] == pytest.approx(area, abs=1e-9)


def test_auprc_by_hand():
    # Ranked: hit (1/1), miss, hit (2/3) -> mean of the precisions at both hits.
    scores = np.array([0.9, 0.5, 0.4])
    assert average_precision(scores, truth(1, 0, 1))[0] == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision(np.zeros(4), truth(1, 0, 0, 0)) == [0.25]  # ties: the prevalence
    assert value_of(average_precision(scores, truth(0, 0, 0))) is None


def test_one_class_leaves_undefined_what_it_does_not_define():
    found = confusion_metrics(np.array([0.2, 0.8]), truth(0, 0), 0.5)
    assert {name for name, value in found.items() if math.isnan(value[0])} == {
        *("sensitivity", "f1", "mcc")
    }
    assert (found["ppv"], found["npv"], found["specificity"]) == ([0.0], [1.0], [0.5])


def test_images_called_alike_have_an_mcc_of_0_and_no_value_of_the_other_call():
    scores, positive = np.array([0.2, 0.8]), truth(0, 1)
    low, high = (confusion_metrics(scores, positive, level) for level in (0.1, 0.9))
    assert low["mcc"] == high["mcc"] == [0.0]
    assert np.isnan([low["npv"][0], high["ppv"][0]]).all()
    assert (low["ppv"], high["npv"], high["f1"]) == ([0.5], [0.5], [0.0])


def test_youden_is_the_best_point_of_scikit_learns_curve():
    generator = np.random.default_rng(1)
    for _ in range(20):
        scores, positive = tied_scores(generator)
        false_rate, true_rate, levels = roc_curve(positive, scores, drop_intermediate=False)
        index = true_rate - false_rate
        best = levels[1:][index[1:] >= index[1:].max() - 1e-12].max()
        assert ThresholdRule().choose(scores, positive) == best


def test_f1_is_the_best_of_all_levels():
    generator = np.random.default_rng(2)
    for _ in range(20):
        scores, positive = tied_scores(generator)
        every = {level: f1_score(positive, scores >= level) for level in np.unique(scores)}
        chosen = ThresholdRule("f1").choose(scores, positive)
        assert every[chosen] == pytest.approx(max(every.values()), abs=1e-12)


def test_a_sensitivity_is_reached_at_the_highest_level_that_does():
    scores, positive = np.array([0.9, 0.8, 0.7, 0.6, 0.5]), truth(1, 0, 1, 0, 1)
    for asked, level in ((0.3, 0.9), (0.6, 0.7), (2 / 3, 0.7), (0.9, 0.5), (1.0, 0.5)):
        assert ThresholdRule(asked).choose(scores, positive) == level


def test_a_finding_without_a_validation_positive_is_null_with_the_reason():
    known = np.array([[0, 0, UNKNOWN], [0, 1, UNKNOWN]], dtype=np.int8)
    margins = np.array([[0.1, 0.2, 0.3], [0.1, 0.2, 0.3]])
    thresholds = choose_thresholds(margins, known, ["a", "a", "b"], ThresholdRule())
    assert thresholds[1] == Figure(0.2, 2, 1)
    shown = np.array([[0, 1, 1], [0, 1, 1]], dtype=np.int8)
    outcome = evaluate_decisions(
        ["rare", "common"], margins, shown, ["c", "d", "e"], thresholds, NO_DRAWS
    )
    rare, common = outcome.groups["rare"], outcome.groups["common"]
    assert rare["auprc"].value == common["auprc"].value == 1.0
    for name in AT_THRESHOLD:
        assert rare[name].value is None
        assert rare[name].reason.startswith("0 validation images with the finding and 2 without")
        assert common[name].value == 1.0
    # The mean is over the finding that has a threshold.
    assert outcome.figures["mean_mcc"].value == 1.0
    assert (outcome.pool["findings"], outcome.pool["thresholds"]) == (2, 1)
    assert outcome.chance["rare.auprc"] == pytest.approx(2 / 3)


def test_nulls_of_the_evaluated_images_say_why():
    margins, shown = np.array([[0.1, 0.2]]), np.array([[0, 0]], dtype=np.int8)
    thresholds = [Figure(0.5, 9, 9)]
    outcome = evaluate_decisions(["fluid"], margins, shown, ["a", "b"], thresholds, NO_DRAWS)
    reasons = {name: item.reason for name, item in outcome.groups["fluid"].items() if item.reason}
    assert reasons == {
        "auprc": "no image with the finding",
        "sensitivity": "no image with the finding",
        "ppv": "no image reaches the threshold",
        "f1": "no image with the finding",
        "mcc": "no image of one of the two classes",
    }


def test_intervals_draw_patients_and_not_images():
    generator = np.random.default_rng(3)
    subjects = [f"p{image // 10}" for image in range(100)]  # ten images a patient, all alike
    shown = np.repeat(np.arange(10) % 2, 10)[None].astype(np.int8)
    margins = np.repeat(shown[0, ::10] + generator.normal(0, 0.8, 10), 10)[None]
    draws = BootstrapOptions(400, 0)
    found = evaluate_decisions(["x"], margins, shown, subjects, [Figure(0.5, 9, 9)], draws)
    alone = [str(image) for image in range(100)]
    other = evaluate_decisions(["x"], margins, shown, alone, [Figure(0.5, 9, 9)], draws)
    widths = [item.groups["x"]["specificity"] for item in (found, other)]
    assert widths[0].value == widths[1].value
    assert widths[0].high - widths[0].low > 1.5 * (widths[1].high - widths[1].low)
