"""Operating points: a threshold chosen on validation images, and what it decides on others.

A finding is decided to be present where its margin is at least the threshold. The threshold is
fixed before an evaluated image is looked at: intervals are over the evaluated patients alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

from medclip_dcl.core.errors import MetricError
from medclip_dcl.evaluation.bootstrap import BootstrapOptions, Figure, Samples, Weights, estimate
from medclip_dcl.evaluation.classification import UNKNOWN, Matrix, Truth, known_images
from medclip_dcl.evaluation.metrics import average_precision, confusion_metrics, mean, mean_of
from medclip_dcl.evaluation.results import EvalResult

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
_NO_FINDING = "no finding has images of both classes that define it"


@dataclass(frozen=True)
class ThresholdRule:
    """Rule by which a threshold is chosen: `evaluate.threshold`."""

    kind: Literal["youden", "f1"] | float = "youden"
    """A number is the sensitivity that the threshold has to reach."""

    def choose(
        self, margins: Float[np.ndarray, " images"], positive: Bool[np.ndarray, " images"]
    ) -> float:
        """Choose among the margins of validation images; the highest where several are as good.

        Raises:
            MetricError: the images show one class alone.

        Source: Youden 1950.
        """
        present, absent = int(positive.sum()), int((~positive).sum())
        if not present or not absent:
            raise MetricError("a threshold needs images of both classes; give more labels")
        levels = np.unique(margins)[::-1]
        hits, misses = (_reached(margins[own], levels) for own in (positive, ~positive))
        if self.kind == "youden":
            # In whole numbers: rounding must not decide between levels that are as good.
            best = int((hits * absent - misses * present).argmax())
        elif self.kind == "f1":
            best = int((2 * hits / (hits + misses + present)).argmax())
        else:
            best = int((hits >= self.kind * present - 1e-9).argmax())
        return float(levels[best])


def _reached(margins: np.ndarray, levels: np.ndarray) -> np.ndarray:
    # How many of the margins are at least each level.
    count: np.ndarray = len(margins) - np.searchsorted(np.sort(margins), levels, side="left")
    return count


def choose_thresholds(
    margins: Matrix, truth: Truth, subjects: Sequence[str], rule: ThresholdRule
) -> list[Figure]:
    """Choose the threshold of every finding on validation images; without a value, with the reason.

    `n` and `subjects` are the validation images with a label, and their patients.
    """
    thresholds = []
    for margin, state in zip(margins, truth, strict=True):
        known, positive, owners = known_images(state, subjects)
        sizes = (len(owners), len(set(owners)))
        if positive.any() and not positive.all():
            thresholds.append(Figure(rule.choose(margin[known], positive), *sizes))
        else:
            reason = (
                f"{int(positive.sum())} validation images with the finding and "
                f"{int((~positive).sum())} without; a threshold needs both"
            )
            thresholds.append(Figure(None, *sizes, reason=reason))
    return thresholds


def decision_metrics(
    margins: Float[np.ndarray, " images"],
    positive: Bool[np.ndarray, " images"],
    threshold: float | None,
    weights: Weights | None = None,
) -> dict[str, Samples]:
    """Measure `prevalence` and `auprc`, and with a threshold `metrics.confusion_metrics`."""
    found = {
        "prevalence": mean(positive.astype(float), weights),
        "auprc": average_precision(margins, positive, weights),
    }
    if threshold is not None:
        found |= confusion_metrics(margins, positive, threshold, weights)
    return found


def measure_decisions(
    margins: Matrix, truth: Truth, thresholds: Sequence[float | None], weights: Weights
) -> dict[str, Samples]:
    """Average `decision_metrics` over the findings that have both classes in the sample.

    Each figure is averaged over those of them that define it, such as those with a threshold.
    """
    measured = [
        decision_metrics(margin[known], state[known] == 1, threshold, weights[:, known])
        for margin, state, threshold in zip(margins, truth, thresholds, strict=True)
        for known in (state != UNKNOWN,)
    ]
    both = [(item["prevalence"] > 0) & (item["prevalence"] < 1) for item in measured]
    return {
        f"mean_{name}": mean_of(
            [
                np.where(is_shared, item[name], np.nan)
                for is_shared, item in zip(both, measured, strict=True)
                if name in item
            ]
        )
        for name in ("auprc", *AT_THRESHOLD)
        if any(name in item for item in measured)
    }


def evaluate_decisions(
    findings: Sequence[str],
    margins: Matrix,
    truth: Truth,
    subjects: Sequence[str],
    thresholds: Sequence[Figure],
    bootstrap: BootstrapOptions,
) -> EvalResult:
    """Measure the decisions on evaluated images at the thresholds of `choose_thresholds`.

    Groups are findings; each has its `threshold`, and figures at it where there is one.
    """
    groups: dict[str, dict[str, Figure]] = {}
    chance: dict[str, float | None] = {}
    for name, margin, state, threshold in zip(findings, margins, truth, thresholds, strict=True):
        groups[name] = {"threshold": threshold} | decision_figures(
            margin, state, subjects, threshold, bootstrap
        )
        chance |= {f"{name}.auprc": groups[name]["prevalence"].value, f"{name}.mcc": 0.0}

    levels = [threshold.value for threshold in thresholds]

    def measure(weights: Weights) -> dict[str, Samples]:
        return measure_decisions(margins, truth, levels, weights)

    pool = {
        "images": len(subjects),
        "findings": len(groups),
        "thresholds": sum(threshold.value is not None for threshold in thresholds),
    }
    absent = "no image has a label" if (truth == UNKNOWN).all() else ""
    return EvalResult(
        absent, pool, chance, estimate(measure, subjects, bootstrap, _NO_FINDING), groups
    )


def decision_figures(
    margins: Float[np.ndarray, " images"],
    truth: np.ndarray,
    subjects: Sequence[str],
    threshold: Figure,
    bootstrap: BootstrapOptions,
) -> dict[str, Figure]:
    """Estimate `decision_metrics` over the images whose truth is known, with a reason for nulls."""
    known, positive, owners = known_images(truth, subjects)
    margin = margins[known]

    def measure(weights: Weights) -> dict[str, Samples]:
        return decision_metrics(margin, positive, threshold.value, weights)

    found = estimate(measure, owners, bootstrap, "")
    found = {
        name: figure if figure.value is not None else replace(figure, reason=_REASONS[name])
        for name, figure in found.items()
    }
    if threshold.value is None:
        nothing = Figure(None, len(owners), len(set(owners)), reason=threshold.reason)
        found |= dict.fromkeys(AT_THRESHOLD, nothing)
    return found
