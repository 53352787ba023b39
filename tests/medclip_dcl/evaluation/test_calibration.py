import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from medclip_dcl.evaluation.bootstrap import BootstrapOptions
from medclip_dcl.evaluation.calibration import (
    calibrate_finding,
    calibrate_findings,
    evaluate_probabilities,
    fit_curve,
)
from medclip_dcl.evaluation.classification import UNKNOWN
from medclip_dcl.inference.model_package import Curve, FindingCalibration, ScoreCalibration
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.models.settings import ProbabilitiesConfig
from tests.support.oracle import shown


def drawn(images: int, slope: float, intercept: float) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and truth by log odds of slope * logit + intercept."""
    rng = np.random.default_rng(1)
    logits = 3 * rng.normal(size=images)
    chance = 1 / (1 + np.exp(-(slope * logits + intercept)))
    return logits, rng.uniform(size=images) < chance


def test_platt_is_the_sigmoid_of_scikit_learn():
    logits, truth = drawn(300, 0.4, -1.5)
    scorer = LogisticRegression().fit(logits[:, None], truth)
    scores = scorer.decision_function(logits[:, None])  # what scikit-learn calibrates
    oracle = CalibratedClassifierCV(FrozenEstimator(scorer), method="sigmoid")
    oracle.fit(logits[:, None], truth)
    expected = oracle.predict_proba(logits[:, None])[:, 1]
    found = fit_curve(scores, truth, "platt").probabilities(scores)
    assert np.abs(found - expected).max() < 1e-4


def test_isotonic_is_that_of_scikit_learn():
    logits, truth = drawn(200, 0.6, 0.0)
    oracle = IsotonicRegression(out_of_bounds="clip").fit(logits, truth.astype(float))
    curve = fit_curve(logits, truth, "isotonic")
    indices = np.linspace(-12, 12, 400)
    assert np.abs(curve.probabilities(indices) - oracle.predict(indices)).max() < 1e-12


def test_the_curve_that_drew_the_truth_is_found_again():
    logits, truth = drawn(40_000, 0.5, -1.0)
    platt = fit_curve(logits, truth, "platt")
    assert (platt.slope, platt.intercept) == (
        pytest.approx(0.5, abs=0.02),
        pytest.approx(-1, abs=0.05),
    )
    logits, truth = drawn(40_000, 0.25, 0.0)
    temperature = fit_curve(logits, truth, "temperature")
    assert temperature.slope == pytest.approx(0.25, abs=0.01)  # a temperature of 4
    assert temperature.intercept == 0


def test_a_curve_follows_the_unit_of_the_logits_and_may_lack_any():
    logits, truth = drawn(300, 0.4, -1.5)
    curve, other = (fit_curve(unit * logits, truth, "platt") for unit in (1.0, 1e6))
    assert other.slope * 1e6 == pytest.approx(curve.slope, rel=1e-6)
    assert other.intercept == pytest.approx(curve.intercept, rel=1e-6)
    alike = fit_curve(np.zeros(10), np.arange(10) < 3, "platt").probabilities(np.zeros(1))
    assert alike == pytest.approx([(3 * 4 / 5 + 7 * 1 / 9) / 10], abs=1e-6)  # the mean target


def test_classes_that_a_threshold_separates_keep_a_finite_slope():
    logits = np.array([-2.0, -1.0, 1.0, 2.0])
    curve = fit_curve(logits, logits > 0, "platt")
    assert 0 < curve.slope < 10
    assert curve.probabilities(logits) == pytest.approx([0.25, 0.25, 0.75, 0.75], abs=0.1)


def test_fitting_lowers_the_error_of_a_score_that_says_too_much():
    logits, truth = drawn(2000, 0.2, -1.5)
    found = calibrate_finding("edema", logits, truth, 900, ProbabilitiesConfig())
    assert (found.images_with, found.images_without) == (int(truth.sum()), int((~truth).sum()))
    assert found.patients == 900
    assert found.fitted_error < 0.03 < 0.2 < found.score_error


def test_too_few_images_of_a_class_are_named():
    logits, truth = np.arange(6.0), np.array([False] * 4 + [True] * 2)
    found = calibrate_finding("edema", logits, truth, 6, ProbabilitiesConfig(least_per_class=3))
    assert found.curve is None
    assert "2 validation images with it and 4 without" in found.reason
    kept = calibrate_finding("edema", logits, truth, 6, ProbabilitiesConfig(least_per_class=2))
    assert kept.curve == fit_curve(logits, truth, "platt")
    assert kept.reason == ""


def test_a_score_that_falls_with_the_finding_is_not_turned_round():
    logits, truth = np.arange(6.0), np.array([True] * 3 + [False] * 3)
    found = calibrate_finding("edema", logits, truth, 6, ProbabilitiesConfig(least_per_class=1))
    assert found.curve is None
    assert found.auc == 0.0
    assert "upside down" in found.reason
    assert found.is_refused


TEN = np.arange(10.0)
HALVES = TEN > 4


def test_a_pair_whose_scores_move_together_is_refused_although_it_ranks_well():
    settings = ProbabilitiesConfig(least_per_class=3)
    found = calibrate_finding("edema", TEN, HALVES, 10, settings, 0.98)
    assert (found.curve, found.auc, found.correlation) == (None, 1.0, 0.98)
    assert found.is_refused
    assert "on the validation images, its two prompts do not decide" in found.reason
    kept = calibrate_finding("edema", TEN, HALVES, 10, settings, 0.94)
    assert kept.curve == fit_curve(TEN, HALVES, "platt")
    assert (kept.reason, kept.is_refused, kept.auc) == ("", False, 1.0)


def test_an_area_of_too_few_images_refuses_nothing_but_a_correlation_does():
    # No label is needed to see that two scores move together.
    settings = ProbabilitiesConfig(least_per_class=6)
    few = calibrate_finding("edema", -TEN, HALVES, 10, settings, None)
    assert (few.auc, few.is_refused) == (None, False)
    assert few.reason.startswith("5 validation images with it and 5 without")
    both = calibrate_finding("edema", -TEN, HALVES, 10, settings, 1.0)
    assert both.is_refused
    assert "do not decide" in both.reason
    assert "5 validation images with it and 5 without" in both.reason


def test_each_finding_has_its_own_correlation():
    settings = ProbabilitiesConfig(least_per_class=3)
    truth = np.array([HALVES, HALVES], dtype=np.int8)
    fluid, cyst = calibrate_findings(
        (FLUID, CYST), np.array([TEN, TEN]), truth, list("abcdefghij"), settings, [0.1, 0.99]
    )
    assert (fluid.is_refused, cyst.is_refused) == (False, True)
    assert fluid.curve is not None
    assert cyst.curve is None


@pytest.mark.parametrize("method", ["platt", "temperature"])
def test_a_curve_that_one_image_far_off_turns_round_is_not_kept(method: str):
    # 12 of 16 pairs are in order, but the straight line through the log odds falls.
    logits, truth = np.array([1.0, 1, 1, -100, 0, 0, 0, 0]), np.array([True] * 4 + [False] * 4)
    settings = ProbabilitiesConfig(least_per_class=4, method=method)
    found = calibrate_finding("edema", logits, truth, 8, settings)
    assert found.curve is None
    assert found.reason == f"no rising {method} curve fits the validation images"
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

    calibration = ScoreCalibration(
        truth="exact",
        settings=ProbabilitiesConfig(),
        inputs={},
        findings=(calibrated("cyst", None), calibrated("fluid", Curve(slope=0.5))),
    )
    images, own, sampling = shown({}, {}, {}), (CYST, FLUID), BootstrapOptions(0, 0)
    logits = 2 * np.log(3) * np.array([[1.0, -1.0, 1.0]] * 2)
    truth = np.array([[1, 0, UNKNOWN]] * 2, dtype=np.int8)
    data = logits, truth, images, sampling
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


def test_a_curve_that_falls_or_leaves_the_scale_cannot_be_written():
    for wrong in (
        {"slope": -1.0},
        {"logits": (0.0, 1.0), "heights": (0.5, 0.4)},
        {"logits": (0.0,), "heights": (1.5,)},
        {"logits": (0.0, 1.0), "heights": (0.5,)},
    ):
        with pytest.raises(ValueError, match=r"curve|probability"):
            Curve.model_validate(wrong)
