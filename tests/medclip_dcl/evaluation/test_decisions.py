import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_curve

from medclip_dcl.evaluation.classification import UNKNOWN
from medclip_dcl.evaluation.decisions import (
    AT_THRESHOLD,
    calibrate_finding,
    calibrate_findings,
    choose_threshold,
    evaluate_decisions,
    evaluate_probabilities,
    fit_curve,
)
from medclip_dcl.evaluation.metrics import BootstrapOptions, Figure
from medclip_dcl.inference.model_package import Curve, FindingCalibration, ScoreCalibration
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.models.settings import ProbabilitiesConfig
from tests.support.oracle import shown as shown_images

NO_DRAWS = BootstrapOptions(0, 0)


def test_youden_is_the_best_point_of_scikit_learns_curve():
    generator = np.random.default_rng(1)
    for _ in range(20):
        scores, positive = generator.integers(0, 9, 60) / 9, generator.random(60) < 0.3
        false_rate, true_rate, levels = roc_curve(positive, scores, drop_intermediate=False)
        index = true_rate - false_rate
        best = levels[1:][index[1:] >= index[1:].max() - 1e-12].max()
        chosen = choose_threshold(scores, positive.astype(np.int8), list(map(str, range(60))))
        assert chosen == Figure(best, 60, 60)


def test_nulls_of_validation_and_of_the_evaluated_images_say_why():
    known = np.array([[0, 0, UNKNOWN], [0, 1, UNKNOWN]], dtype=np.int8)
    margins = np.array([[0.1, 0.2, 0.3], [0.1, 0.2, 0.3]])
    thresholds = [choose_threshold(margins[0], state, ["a", "a", "b"]) for state in known]
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


def drawn(images: int, slope: float, intercept: float) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and truth by log odds of slope * logit + intercept."""
    rng = np.random.default_rng(1)
    logits = 3 * rng.normal(size=images)
    chance = 1 / (1 + np.exp(-(slope * logits + intercept)))
    return logits, rng.uniform(size=images) < chance


def test_platt_is_the_sigmoid_of_scikit_learn():
    logits, truth = drawn(300, 0.4, -1.5)
    column = logits[:, None]
    scorer = LogisticRegression().fit(column, truth)
    scores = scorer.decision_function(column)  # what scikit-learn calibrates
    oracle = CalibratedClassifierCV(FrozenEstimator(scorer), method="sigmoid").fit(column, truth)
    ours = fit_curve(scores, truth).probabilities(scores)
    assert ours == pytest.approx(oracle.predict_proba(column)[:, 1], abs=1e-4, rel=0)


def test_the_curve_that_drew_the_truth_is_found_again_and_lowers_the_error():
    logits, truth = drawn(40_000, 0.2, -1.5)
    found = calibrate_finding("edema", logits, truth, 900, ProbabilitiesConfig())
    assert found.curve.slope == pytest.approx(0.2, abs=0.02)
    assert found.curve.intercept == pytest.approx(-1.5, abs=0.05)
    assert (found.images_with, found.images_without) == (int(truth.sum()), int((~truth).sum()))
    assert found.patients == 900
    assert found.fitted_error < 0.03 < 0.2 < found.score_error


TEN = np.arange(10.0)
HALVES = TEN > 4


def test_scores_that_move_together_are_refused_and_too_few_images_of_a_class_are_named():
    settings = ProbabilitiesConfig(least_per_class=5)
    found = calibrate_finding("edema", TEN, HALVES, 10, settings, 0.98)
    assert (found.curve, found.auc, found.correlation) == (None, 1.0, 0.98)
    assert found.is_refused
    assert "on the validation images, its two prompts do not decide" in found.reason
    kept = calibrate_finding("edema", TEN, HALVES, 10, settings, 0.94)
    assert kept.curve == fit_curve(TEN, HALVES)
    assert (kept.reason, kept.is_refused, kept.auc) == ("", False, 1.0)
    # No label is needed to see that two scores move together.
    settings = ProbabilitiesConfig(least_per_class=6)
    few = calibrate_finding("edema", -TEN, HALVES, 10, settings, None)
    assert (few.curve, few.auc, few.is_refused) == (None, None, False)
    assert few.reason.startswith("5 validation images with it and 5 without")
    both = calibrate_finding("edema", -TEN, HALVES, 10, settings, 1.0)
    assert both.is_refused
    assert "do not decide" in both.reason
    assert "5 validation images with it and 5 without" in both.reason


def test_a_curve_that_one_image_far_off_turns_round_is_not_kept():
    # 12 of 16 pairs are in order, but the straight line through the log odds falls.
    logits, truth = np.array([1.0, 1, 1, -100, 0, 0, 0, 0]), np.array([True] * 4 + [False] * 4)
    settings = ProbabilitiesConfig(least_per_class=4)
    found = calibrate_finding("edema", logits, truth, 8, settings)
    assert found.curve is None
    assert found.reason == "no rising curve fits the validation images"
    assert found.fitted_error is None


FLUID, CYST = (Finding(name, (name,), ("normal",)) for name in ("fluid", "cyst"))


def test_findings_are_fitted_on_the_images_whose_truth_is_known():
    settings = ProbabilitiesConfig(least_per_class=1)
    logits = np.array([[0.0, 1, 2, 3, 9], [3.0, 2, 1, 0, 9]])
    truth = np.array([[0, 0, 1, 1, UNKNOWN], [0, 0, 1, 1, UNKNOWN]], dtype=np.int8)
    fluid, cyst = calibrate_findings((FLUID, CYST), logits, truth, list("aabbc"), settings)
    expected = calibrate_finding("fluid", logits[0, :4], truth[0, :4] == 1, 2, settings)
    assert fluid == expected
    assert (fluid.patients, fluid.images_with, fluid.images_without) == (2, 2, 2)
    assert cyst.curve is None


def test_probabilities_are_compared_with_the_truth_by_hand():
    # The curve halves the logit: 2 log 3 becomes 3 to 1, where the score has 9 to 1.
    def calibrated(name, curve):
        about = {"reason": "" if curve else "too few", "images_with": 5, "images_without": 5}
        return FindingCalibration(
            finding=name, curve=curve, patients=5, score_error=None, fitted_error=None, **about
        )

    fitted = (calibrated("cyst", None), calibrated("fluid", Curve(slope=0.5)))
    calibration = ScoreCalibration(
        truth="exact", settings=ProbabilitiesConfig(), inputs={}, findings=fitted
    )
    own = CYST, FLUID
    logits = 2 * np.log(3) * np.array([[1.0, -1.0, 1.0]] * 2)
    truth = np.array([[1, 0, UNKNOWN]] * 2, dtype=np.int8)
    data = logits, truth, shown_images({}, {}, {}), NO_DRAWS
    outcome, said = evaluate_probabilities(calibration, (own, own), *data)
    assert said[0] == [None] * 3
    assert said[1] == pytest.approx([0.75, 0.25, 0.75])
    assert outcome.absent == ""
    assert outcome.pool == {"images": 3, "findings": 1}
    found = {name: figure.value for name, figure in outcome.groups["fluid"].items()}
    expected = {"calibration_error": 0.25, "brier": 0.25**2}
    expected |= {"score_calibration_error": 0.1, "score_brier": 0.1**2}
    assert found == pytest.approx(expected)
    assert "calibrate_scores" in evaluate_probabilities(None, (own, own), *data)[0].absent
    other, _ = evaluate_probabilities(calibration, ((CYST,), own), logits[:1], truth[:1], *data[2:])
    assert other.absent == "no finding that was asked for has a calibration"


def test_a_curve_that_falls_cannot_be_written():
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        Curve.model_validate({"slope": -1.0})
