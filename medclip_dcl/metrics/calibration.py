"""A score's logit -> the probability of a finding, fitted where the truth is known.

platt        sigmoid(slope * logit + intercept)
temperature  sigmoid(slope * logit), slope = 1 / temperature
isotonic     the rising step function with the least squared error, straight in between
"""

import numpy as np
from jaxtyping import Bool, Float
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from medclip_dcl.artifacts.probabilities import Curve, FindingCalibration
from medclip_dcl.config.probabilities import ProbabilitiesConfig
from medclip_dcl.metrics.classification import roc_auc
from medclip_dcl.metrics.reliability import calibration_error

Logits = Float[np.ndarray, " films"]
Truth = Bool[np.ndarray, " films"]

SCORE = Curve(slope=1.0)
"""The score itself: the softmax over the two prompts."""

_TOLERANCE = 1e-8
_ITERATIONS = 1000


def calibrate_finding(
    finding: str, logits: Logits, positive: Truth, patients: int, settings: ProbabilitiesConfig
) -> FindingCalibration:
    """Fit the calibration of one finding, if its films allow it.

    Args:
        finding: its name.
        logits: log odds of each film's score, gamma**2 times the margin; of films whose
            truth is known.
        positive: the truth.
        patients: patients of these films.
        settings: method and least number of films.

    Returns:
        The calibration; without a curve, and with the reason, where a class has too few
        films or the score does not rise with the finding.
    """
    present = int(positive.sum())
    absent = len(positive) - present
    reason = _refusal(logits, positive, settings.least_per_class)
    curve = None if reason else fit_curve(logits, positive, settings.method)
    if curve is not None and not curve.logits and curve.slope == 0:
        curve, reason = None, f"no rising {settings.method} curve fits the validation films"
    return FindingCalibration(
        finding=finding,
        curve=curve,
        reason=reason,
        films_with=present,
        films_without=absent,
        patients=patients,
        score_error=calibration_error(SCORE.probabilities(logits), positive),
        fitted_error=(
            None if curve is None else calibration_error(curve.probabilities(logits), positive)
        ),
    )


def fit_curve(logits: Logits, positive: Truth, method: str) -> Curve:
    """Fit a curve.

    Args:
        logits: log odds of each film's score.
        positive: the truth; both classes occur.
        method: one of `ProbabilitiesConfig.method`.

    Returns:
        The curve.

    Source: Platt 2000, Section 2.2, with its smoothed targets, which keep the slope finite
        where a threshold separates the classes; Guo et al. 2017, Section 4.2; Zadrozny and
        Elkan 2002.
    """
    if method == "isotonic":
        return _isotonic(logits, positive)
    present, absent = int(positive.sum()), int((~positive).sum())
    target = np.where(positive, (present + 1) / (present + 2), 1 / (absent + 2))
    scale = float(np.abs(logits).max()) or 1.0  # logits of one size: the solver's steps suit them
    model = LogisticRegression(
        C=np.inf, fit_intercept=method == "platt", tol=_TOLERANCE, max_iter=_ITERATIONS
    )
    # each film counts as both classes, by what its target leaves to either
    doubled = np.concatenate([logits, logits])[:, None] / scale
    classes = np.repeat([1, 0], len(logits))
    model.fit(doubled, classes, sample_weight=np.concatenate([target, 1 - target]))
    return Curve(
        slope=max(float(model.coef_[0, 0]) / scale, 0.0),
        intercept=float(np.ravel(model.intercept_)[0]),
    )


def _isotonic(logits: Logits, positive: Truth) -> Curve:
    model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    model.fit(logits, positive.astype(np.float64))
    heights = np.clip(np.maximum.accumulate(model.y_thresholds_), 0.0, 1.0)
    return Curve(logits=tuple(model.X_thresholds_.tolist()), heights=tuple(heights.tolist()))


def _refusal(logits: Logits, positive: Truth, least: int) -> str:
    present = int(positive.sum())
    absent = len(positive) - present
    if min(present, absent) < least:
        return (
            f"{present} validation films with it and {absent} without; "
            f"probabilities.least_per_class asks for {least} of each"
        )
    area = roc_auc(logits, positive)
    if area is None or area <= 0.5:
        return "its score does not rise with the finding on the validation films"
    return ""
