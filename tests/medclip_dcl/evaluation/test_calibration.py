import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from medclip_dcl.evaluation.calibration import calibrate_finding, fit_curve
from medclip_dcl.evaluation.settings import ProbabilitiesConfig
from medclip_dcl.model_package import Curve


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


def test_the_size_of_the_logits_does_not_matter():
    logits, truth = drawn(500, 0.5, -1.0)
    one, other = (fit_curve(scale * logits, truth, "platt") for scale in (1.0, 1e3))
    assert np.abs(
        one.probabilities(logits) - other.probabilities(1e3 * logits)
    ).max() == pytest.approx(0, abs=1e-5)


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
    assert "does not rise" in found.reason


def test_a_curve_that_falls_or_leaves_the_scale_cannot_be_written():
    for wrong in (
        {"slope": -1.0},
        {"logits": (0.0, 1.0), "heights": (0.5, 0.4)},
        {"logits": (0.0,), "heights": (1.5,)},
        {"logits": (0.0, 1.0), "heights": (0.5,)},
    ):
        with pytest.raises(ValueError, match=r"curve|probability"):
            Curve.model_validate(wrong)


def test_far_logits_neither_overflow_nor_leave_the_scale():
    said = Curve(slope=1.0).probabilities(np.array([-1e4, 0.0, 1e4]))
    assert said.tolist() == [0.0, 0.5, 1.0]
