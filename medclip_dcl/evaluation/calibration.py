"""A score's logit -> the probability of a finding, fitted where the truth is known.

platt        sigmoid(slope * logit + intercept)
temperature  sigmoid(slope * logit), slope = 1 / temperature
isotonic     the rising step function with the least squared error, straight in between

Fitted on validation images, evaluated on others.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int8
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.files import write_text
from medclip_dcl.evaluation.bootstrap import BootstrapOptions, Figure, Samples, Weights, estimate
from medclip_dcl.evaluation.classification import Matrix, Truth, known_images
from medclip_dcl.evaluation.evaluated_model import EncodedImages
from medclip_dcl.evaluation.metrics import brier_score, calibration_error, roc_auc, value_of
from medclip_dcl.evaluation.prompt_pairs import CHANCE_AUC, check_pair
from medclip_dcl.evaluation.results import EvalResult
from medclip_dcl.inference.model_package import (
    CALIBRATION_FILE,
    Curve,
    FindingCalibration,
    ScoreCalibration,
    rewrite_package,
)
from medclip_dcl.inference.predictor import Predictor
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.inference.zero_shot import UNCALIBRATED, calibrations_of
from medclip_dcl.models.settings import ProbabilitiesConfig

Logits = Float[np.ndarray, " images"]
FindingTruth = Bool[np.ndarray, " images"]

_SCORE = Curve(slope=1.0)  # the score itself: the softmax over the two prompts
_TOLERANCE = 1e-8
_ITERATIONS = 1000
_COMPARED = 256  # images whose answers are made at a time


def calibrate_finding(
    finding: str,
    logits: Logits,
    positive: FindingTruth,
    patients: int,
    settings: ProbabilitiesConfig,
    correlation: float | None = None,
) -> FindingCalibration:
    """Fit the calibration of one finding; without a curve, with the reason, where none fits.

    `correlation` is that of the scores of its two prompts. A pair that does not decide is refused,
    and so is a finding that is read upside down: a curve would make chance look like knowledge.
    """
    present, absent = int(positive.sum()), int((~positive).sum())
    enough = min(present, absent) >= settings.least_per_class
    auc = value_of(roc_auc(logits, positive)) if enough else None
    refused = check_pair(finding, correlation, auc)
    reason = "" if refused is None else f"on the validation images, {refused.reason}"
    if not enough:
        reason += "; " if reason else ""
        reason += (
            f"{present} validation images with it and {absent} without; "
            f"probabilities.least_per_class asks for {settings.least_per_class} of each"
        )
    elif refused is None and auc == CHANCE_AUC:
        reason = "its score does not rise with the finding on the validation images"
    curve = None if reason else fit_curve(logits, positive, settings.method)
    if curve is not None and not curve.logits and curve.slope == 0:
        curve, reason = None, f"no rising {settings.method} curve fits the validation images"
    return FindingCalibration(
        finding=finding,
        curve=curve,
        reason=reason,
        images_with=present,
        images_without=absent,
        patients=patients,
        score_error=value_of(calibration_error(_SCORE.probabilities(logits), positive)),
        fitted_error=(
            None
            if curve is None
            else value_of(calibration_error(curve.probabilities(logits), positive))
        ),
        correlation=correlation,
        auc=auc,
        is_refused=refused is not None,
    )


def fit_curve(logits: Logits, positive: FindingTruth, method: str) -> Curve:
    """Fit a curve by one of `ProbabilitiesConfig.method`; both classes must occur.

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
    # each image counts as both classes, by what its target leaves to either
    doubled = np.concatenate([logits, logits])[:, None] / scale
    classes = np.repeat([1, 0], len(logits))
    model.fit(doubled, classes, sample_weight=np.concatenate([target, 1 - target]))
    return Curve(
        slope=max(float(model.coef_[0, 0]) / scale, 0.0),
        intercept=float(np.ravel(model.intercept_)[0]),
    )


def _isotonic(logits: Logits, positive: FindingTruth) -> Curve:
    model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    model.fit(logits, positive.astype(np.float64))
    # Rounding can leave a height an ulp below the one before, which a Curve refuses.
    heights = np.clip(np.maximum.accumulate(model.y_thresholds_), 0.0, 1.0)
    return Curve(logits=tuple(model.X_thresholds_.tolist()), heights=tuple(heights.tolist()))


def calibrate_findings(
    findings: Sequence[Finding],
    logits: Matrix,
    truth: Truth,
    subjects: Sequence[str],
    settings: ProbabilitiesConfig,
    correlations: Sequence[float | None] | None = None,
) -> tuple[FindingCalibration, ...]:
    """Fit every finding, from the log odds of each image's score: gamma**2 times the margin.

    `correlations` are `pair_correlation` of each finding over all images, labelled or not; None:
    they are not known.
    """
    found = []
    close = correlations or [None] * len(findings)
    for finding, row, state, correlation in zip(findings, logits, truth, close, strict=True):
        known, positive, owners = known_images(state, subjects)
        patients = len(set(owners))
        fit = calibrate_finding(finding.name, row[known], positive, patients, settings, correlation)
        found.append(fit)
    return tuple(found)


def evaluate_probabilities(
    calibration: ScoreCalibration | None,
    asked: tuple[Sequence[Finding], Sequence[Finding]],
    logits: Matrix,
    truth: Truth,
    images: EncodedImages,
    bootstrap: BootstrapOptions,
) -> tuple[EvalResult, list[list[float | None]]]:
    """Compare probabilities with the truth of images that they were not fitted to.

    `asked` are the findings, and those that the model was published with. The truth must be that of
    all images: in a balanced share findings are more common. Figures that begin with `score_` are
    those of the score itself. Gives the probabilities too, by finding, then image.
    """
    findings, own = asked
    curves = calibrations_of(findings, own, calibration)
    said: list[list[float | None]] = []
    groups: dict[str, dict[str, Figure]] = {}
    for finding, curve, row, state in zip(findings, curves, logits, truth, strict=True):
        if isinstance(curve, str) or curve.curve is None:
            said.append([None] * len(row))
            continue
        probability = curve.curve.probabilities(row)
        said.append(probability.tolist())
        columns = {"": probability, "score_": _SCORE.probabilities(row)}
        groups[finding.name] = probability_figures(columns, state, images.subject_ids, bootstrap)
    absent = "no finding that was asked for has a calibration"
    if calibration is None:
        absent = f"{UNCALIBRATED}; run calibrate_scores"
    pool = {"images": len(images.image_ids), "findings": len(groups)}
    return EvalResult("" if groups else absent, pool, groups=groups), said


def probability_figures(
    said: Mapping[str, Logits],
    truth: Int8[np.ndarray, " images"],
    subjects: Sequence[str],
    bootstrap: BootstrapOptions,
) -> dict[str, Figure]:
    """Estimate `calibration_error` and `brier` of what is said, each by the prefix of its names."""
    known, positive, owners = known_images(truth, subjects)
    columns = {prefix: values[known] for prefix, values in said.items()}

    def measure(weights: Weights) -> dict[str, Samples]:
        found: dict[str, Samples] = {}
        for prefix, values in columns.items():
            found[f"{prefix}calibration_error"] = calibration_error(values, positive, weights)
            found[f"{prefix}brier"] = brier_score(values, positive, weights)
        return found

    return estimate(measure, owners, bootstrap, "no image with a known truth")


def share_changed(
    plain: Predictor,
    regions: Float[Tensor, "images rows columns dim"],
    other: Predictor,
    others: Float[Tensor, "images rows columns dim"],
) -> float | None:
    """Compare decisions on the same images by a model in two precisions; None: there are none."""
    decided = [
        item.decision
        for model, given in ((plain, regions), (other, others))
        for start in range(0, len(given), _COMPARED)
        for answers in model.classify_regions(given[start : start + _COMPARED].to(model.device))
        for item in answers
    ]
    half = len(decided) // 2
    changed = [here != there for here, there in zip(decided[:half], decided[half:], strict=True)]
    return sum(changed) / half if half else None


def add_calibration(model: Artifact, calibration: ScoreCalibration) -> Artifact:
    """Put a calibration into a model, instead of the one that it has; its digest is new."""
    text = calibration.model_dump_json(indent=1)

    def write(folder: Path) -> None:
        write_text(folder / CALIBRATION_FILE, text + "\n")

    return rewrite_package(model, model.path, (CALIBRATION_FILE,), write)
