"""Scores as probabilities: fitted on validation films, examined on others."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int8

from medclip_dcl.artifacts.probabilities import FindingCalibration, ScoreCalibration
from medclip_dcl.config.probabilities import ProbabilitiesConfig
from medclip_dcl.metrics import summary
from medclip_dcl.metrics.bootstrap import Figure
from medclip_dcl.metrics.calibration import SCORE, calibrate_finding
from medclip_dcl.tasks.outcome import Films, Outcome, Sampling
from medclip_dcl.tasks.prompts import Finding
from medclip_dcl.tasks.zero_shot import UNCALIBRATED, calibrations_of

Matrix = Float[np.ndarray, "findings films"]
Truth = Int8[np.ndarray, "findings films"]


def calibrate_findings(
    findings: Sequence[Finding],
    logits: Matrix,
    truth: Truth,
    subjects: Sequence[str],
    settings: ProbabilitiesConfig,
) -> tuple[FindingCalibration, ...]:
    """Fit every finding that has films enough.

    Args:
        findings: the prompt pairs.
        logits: log odds of each film's score, gamma**2 times the margin.
        truth: 1 present, 0 absent, `summary.UNKNOWN` left out.
        subjects: patient of every film.
        settings: method and least number of films.

    Returns:
        One entry per finding.
    """
    owner = np.asarray(subjects, dtype=str)
    found = []
    for finding, row, state in zip(findings, logits, truth, strict=True):
        known = state != summary.UNKNOWN
        patients = len(np.unique(owner[known]))
        found.append(
            calibrate_finding(finding.name, row[known], state[known] == 1, patients, settings)
        )
    return tuple(found)


def examine_probabilities(
    calibration: ScoreCalibration | None,
    asked: tuple[Sequence[Finding], Sequence[Finding]],
    logits: Matrix,
    truth: Truth,
    films: Films,
    sampling: Sampling,
) -> tuple[Outcome, list[list[float | None]]]:
    """Hold probabilities against the truth of films that they were not fitted to.

    Args:
        calibration: of the model; None: it has none.
        asked: the findings, and those that the model was published with.
        logits: log odds of each film's score.
        truth: of all films, as they come: a share that was chosen says nothing of chances.
        films: the films.
        sampling: of the intervals.

    Returns:
        The outcome, with `calibration_error` and `brier` by finding, and `score_` for the
        score itself on the same films; and the probability of every finding and film, None
        where there is none.
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
        groups[finding.name] = summary.probability_figures(
            SCORE.probabilities(row),
            probability,
            state,
            films.subject_ids,
            sampling.samples,
            sampling.generator(),
        )
    absent = "" if groups else _why_none(calibration)
    pool = {"films": len(films.image_ids), "findings": len(groups)}
    return Outcome(absent, pool, groups=groups), said


def _why_none(calibration: ScoreCalibration | None) -> str:
    if calibration is None:
        return f"{UNCALIBRATED}; run calibrate_scores"
    return "no finding that was asked for has a calibration"
