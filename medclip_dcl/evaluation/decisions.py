"""What a score decides, and how probable it makes a finding: fitted on validation, held to others.

A finding is decided to be present where its margin is at least the threshold. The threshold is
fixed before an evaluated image is looked at: intervals are over the evaluated patients alone.

A calibration turns the logit of a score into the probability of the finding:
sigmoid(slope * logit + intercept).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int8
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.files import write_text
from medclip_dcl.evaluation import classification, metrics
from medclip_dcl.evaluation.evaluated_model import EncodedImages
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

AT_THRESHOLD = ("sensitivity", "specificity", "ppv", "npv", "f1", "mcc")
"""Figures that a finding without a threshold does not have."""

_REASONS = {
    "prevalence": "no image has a label",
    "auprc": "no image with the finding",
    "sensitivity": "no image with the finding",
    "specificity": "no image without the finding",
    "ppv": "no image reaches the threshold",
    "npv": "every image reaches the threshold",
    "f1": "no image with the finding",
    "mcc": "no image of one of the two classes",
}
_SCORE = Curve(slope=1.0)  # the score itself: the softmax over the two prompts
_TOLERANCE = 1e-8
_ITERATIONS = 1000
_COMPARED = 256  # images whose answers are made at a time


def choose_threshold(
    margins: classification.Values,
    truth: Int8[np.ndarray, " images"],
    subjects: Sequence[str],
) -> metrics.Figure:
    """Choose the margin with the largest Youden index, sensitivity + specificity - 1.

    It is chosen on validation images: the highest of their margins where several are as good; `n`
    and `subjects` are those with a label, and their patients. Without both classes there is a
    reason and no value.

    Source: Youden 1950.
    """
    labelled, positive, owners = classification.known_images(truth, subjects)
    present, absent = int(positive.sum()), int((~positive).sum())
    sizes = (len(owners), len(set(owners)))
    if not present or not absent:
        reason = (
            f"{present} validation images with the finding and {absent} without; a threshold "
            "needs both"
        )
        return metrics.Figure(None, *sizes, reason=reason)
    own = margins[labelled]
    levels = np.unique(own)[::-1]
    # How many images with the finding, and without it, reach each level.
    hits, misses = (
        each.sum() - np.searchsorted(np.sort(own[each]), levels, side="left")
        for each in (positive, ~positive)
    )
    # In whole numbers: rounding must not decide between levels that are as good.
    best = (hits * absent - misses * present).argmax()
    return metrics.Figure(float(levels[best]), *sizes)


def decision_metrics(
    margins: classification.Values,
    positive: classification.IsPositive,
    threshold: float | None,
    weights: metrics.Weights,
) -> dict[str, metrics.Samples]:
    """Measure `auprc`, and with a threshold `metrics.confusion_metrics`."""
    figures = {"auprc": metrics.average_precision(margins, positive, weights)}
    if threshold is not None:
        figures |= metrics.confusion_metrics(margins, positive, threshold, weights)
    return figures


def evaluate_decisions(
    findings: Sequence[str],
    margins: classification.Matrix,
    truth: classification.Truth,
    subjects: Sequence[str],
    thresholds: Sequence[metrics.Figure],
    bootstrap: metrics.BootstrapOptions,
) -> EvalResult:
    """Measure the decisions on evaluated images at the findings' thresholds of `choose_threshold`.

    Groups are findings; each has its `threshold`, and figures at it where there is one.
    """
    groups: dict[str, dict[str, metrics.Figure]] = {}
    chance: dict[str, float | None] = {}
    for name, margin, state, threshold in zip(findings, margins, truth, thresholds, strict=True):
        groups[name] = {"threshold": threshold} | decision_figures(
            margin, state, subjects, threshold, bootstrap
        )
        chance |= {f"{name}.auprc": groups[name]["prevalence"].value, f"{name}.mcc": 0.0}
    levels = [threshold.value for threshold in thresholds]
    figures = metrics.estimate(
        lambda weights: classification.mean_over_findings(
            decision_metrics, margins, truth, levels, weights
        ),
        subjects,
        bootstrap,
        "no finding has images of both classes that define it",
    )
    pool = {
        "images": len(subjects),
        "findings": len(groups),
        "thresholds": sum(level is not None for level in levels),
    }
    absent = "no image has a label" if (truth == classification.UNKNOWN).all() else ""
    return EvalResult(absent, pool, chance, figures, groups)


def decision_figures(
    margins: classification.Values,
    truth: Int8[np.ndarray, " images"],
    subjects: Sequence[str],
    threshold: metrics.Figure,
    bootstrap: metrics.BootstrapOptions,
) -> dict[str, metrics.Figure]:
    """Estimate prevalence and `decision_metrics` over the images whose truth is known.

    Figures without a value have the reason.
    """

    def metric(*given: Any) -> dict[str, metrics.Samples]:
        _, positive, _, weights = given
        return {
            "prevalence": metrics.mean(positive.astype(float), weights),
            **decision_metrics(*given),
        }

    figures = classification.figures_of(
        metric, margins, truth, subjects, threshold.value, bootstrap, _REASONS
    )
    if threshold.value is None:
        auprc = figures["auprc"]
        nothing = metrics.Figure(None, auprc.n, auprc.subjects, reason=threshold.reason)
        figures |= dict.fromkeys(AT_THRESHOLD, nothing)
    return figures


def calibrate_finding(
    finding: str,
    logits: classification.Values,
    positive: classification.IsPositive,
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
    auc = metrics.value_of(metrics.roc_auc(logits, positive)) if enough else None
    refused = classification.check_pair(finding, correlation, auc)
    reasons = [] if refused is None else [f"on the validation images, {refused.reason}"]
    if not enough:
        reasons.append(
            f"{present} validation images with it and {absent} without; "
            f"probabilities.least_per_class asks for {settings.least_per_class} of each"
        )
    elif refused is None and auc == classification.CHANCE_AUC:
        reasons.append("its score does not rise with the finding on the validation images")
    curve = None if reasons else fit_curve(logits, positive)
    if curve is not None and curve.slope == 0:
        curve = None
        reasons.append("no rising curve fits the validation images")
    errors = [
        None
        if each is None
        else metrics.value_of(metrics.calibration_error(each.probabilities(logits), positive))
        for each in (_SCORE, curve)
    ]
    return FindingCalibration(
        finding=finding,
        curve=curve,
        reason="; ".join(reasons),
        images_with=present,
        images_without=absent,
        patients=patients,
        score_error=errors[0],
        fitted_error=errors[1],
        correlation=correlation,
        auc=auc,
        is_refused=refused is not None,
    )


def fit_curve(logits: classification.Values, positive: classification.IsPositive) -> Curve:
    """Fit sigmoid(slope * logit + intercept); both classes must occur.

    Source: Platt 2000, Section 2.2, with its smoothed targets, which keep the slope finite where a
        threshold separates the classes.
    """
    present, absent = int(positive.sum()), int((~positive).sum())
    target = np.where(positive, (present + 1) / (present + 2), 1 / (absent + 2))
    scale = float(np.abs(logits).max()) or 1.0  # logits of one size: the solver's steps suit them
    model = LogisticRegression(C=np.inf, tol=_TOLERANCE, max_iter=_ITERATIONS)
    # each image counts as both classes, by what its target leaves to either
    doubled = np.concatenate([logits, logits])[:, None] / scale
    classes = np.repeat([1, 0], len(logits))
    model.fit(doubled, classes, sample_weight=np.concatenate([target, 1 - target]))
    return Curve(
        slope=max(float(model.coef_[0, 0]) / scale, 0.0), intercept=float(model.intercept_[0])
    )


def calibrate_findings(
    findings: Sequence[Finding],
    logits: classification.Matrix,
    truth: classification.Truth,
    subjects: Sequence[str],
    settings: ProbabilitiesConfig,
    correlations: Sequence[float | None] | None = None,
) -> tuple[FindingCalibration, ...]:
    """Fit every finding, from the log odds of each image's score: gamma**2 times the margin.

    `correlations` are `pair_correlation` of each finding over all images, labelled or not; None:
    they are not known.
    """
    fitted = []
    close = correlations or [None] * len(findings)
    for finding, row, state, correlation in zip(findings, logits, truth, close, strict=True):
        labelled, positive, owners = classification.known_images(state, subjects)
        facts = (positive, len(set(owners)), settings, correlation)
        fitted.append(calibrate_finding(finding.name, row[labelled], *facts))
    return tuple(fitted)


def evaluate_probabilities(
    calibration: ScoreCalibration | None,
    asked: tuple[Sequence[Finding], Sequence[Finding]],
    logits: classification.Matrix,
    truth: classification.Truth,
    images: EncodedImages,
    bootstrap: metrics.BootstrapOptions,
) -> tuple[EvalResult, list[list[float | None]]]:
    """Compare probabilities with the truth of images that they were not fitted to.

    `asked` are the findings, and those that the model was published with. Figures that
    begin with `score_` are those of the score itself. Returns the probabilities too, by finding,
    then image.
    """
    findings, own = asked
    probabilities: list[list[float | None]] = []
    groups: dict[str, dict[str, metrics.Figure]] = {}
    curves = calibrations_of(findings, own, calibration)
    for finding, fit, row, state in zip(findings, curves, logits, truth, strict=True):
        if isinstance(fit, str) or fit.curve is None:
            probabilities.append([None] * len(row))
            continue
        probability = fit.curve.probabilities(row)
        probabilities.append(probability.tolist())
        columns = {"": probability, "score_": _SCORE.probabilities(row)}
        groups[finding.name] = probability_figures(columns, state, images.subject_ids, bootstrap)
    absent = "no finding that was asked for has a calibration"
    if calibration is None:
        absent = f"{UNCALIBRATED}; run calibrate_scores"
    pool = {"images": len(images.image_ids), "findings": len(groups)}
    return EvalResult("" if groups else absent, pool, groups=groups), probabilities


def probability_figures(
    probabilities: Mapping[str, classification.Values],
    truth: Int8[np.ndarray, " images"],
    subjects: Sequence[str],
    bootstrap: metrics.BootstrapOptions,
) -> dict[str, metrics.Figure]:
    """Estimate `calibration_error` and `brier` of probabilities, by the prefix of their names."""
    labelled, positive, owners = classification.known_images(truth, subjects)

    def measure(weights: metrics.Weights) -> dict[str, metrics.Samples]:
        return {
            f"{prefix}{name}": metric(values[labelled], positive, weights)
            for prefix, values in probabilities.items()
            for name, metric in (
                ("calibration_error", metrics.calibration_error),
                ("brier", metrics.brier_score),
            )
        }

    return metrics.estimate(measure, owners, bootstrap, "no image with a known truth")


def share_changed(
    plain: Predictor,
    regions: Float[Tensor, "images rows columns dim"],
    other: Predictor,
    others: Float[Tensor, "images rows columns dim"],
) -> float | None:
    """Compare decisions on the same images by a model in two precisions; None: there are none."""
    here, there = (
        [
            item.decision
            for start in range(0, len(given), _COMPARED)
            for answers in model.classify_regions(given[start : start + _COMPARED].to(model.device))
            for item in answers
        ]
        for model, given in ((plain, regions), (other, others))
    )
    return float(np.mean([a != b for a, b in zip(here, there, strict=True)])) if here else None


def add_calibration(model: Artifact, calibration: ScoreCalibration) -> Artifact:
    """Put a calibration into a model, instead of the one that it has; its digest is new."""
    text = calibration.model_dump_json(indent=1)

    def write(folder: Path) -> None:
        write_text(folder / CALIBRATION_FILE, text + "\n")

    return rewrite_package(model, model.path, (CALIBRATION_FILE,), write)
