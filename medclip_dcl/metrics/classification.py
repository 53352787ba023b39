"""Binary classification: area under the ROC curve, its points, and accuracy."""

import numpy as np
from jaxtyping import Bool, Float

from medclip_dcl.errors import MetricError


def roc_auc(
    scores: Float[np.ndarray, " films"], positive: Bool[np.ndarray, " films"]
) -> float | None:
    """Chance that a positive film scores above a negative one, ties counted as half.

    Args:
        scores: higher means more likely positive; any finite scale.
        positive: the truth.

    Returns:
        The area in [0, 1]; None where there are no positives or no negatives.

    Raises:
        MetricError: the lengths differ, or a score is not finite.

    Source: Hanley and McNeil 1982 (Mann-Whitney form).
    """
    _check(scores, positive)
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if positives == 0 or negatives == 0:
        return None
    _, place = np.unique(scores, return_inverse=True)
    hits = np.bincount(place[positive], minlength=place.max() + 1)
    misses = np.bincount(place[~positive], minlength=place.max() + 1)
    below = np.cumsum(misses) - misses
    return float((hits * (below + misses / 2)).sum() / (positives * negatives))


def roc_curve(
    scores: Float[np.ndarray, " films"], positive: Bool[np.ndarray, " films"]
) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]] | None:
    """Points of the ROC curve, from (0, 0) to (1, 1), one per distinct score.

    Args:
        scores: higher means more likely positive; any finite scale.
        positive: the truth.

    Returns:
        False positive rates and true positive rates, both ascending; None where
        there are no positives or no negatives.

    Raises:
        MetricError: the lengths differ, or a score is not finite.
    """
    _check(scores, positive)
    positives = int(positive.sum())
    if positives in {0, len(positive)}:
        return None
    order = np.argsort(-scores, kind="stable")
    last_of_tie = np.append(np.diff(scores[order]) != 0, True)
    hits = np.cumsum(positive[order])[last_of_tie]
    misses = np.cumsum(~positive[order])[last_of_tie]
    false_rate = np.append(0.0, misses / (len(positive) - positives))
    true_rate = np.append(0.0, hits / positives)
    return false_rate, true_rate


def accuracy(
    margins: Float[np.ndarray, " films"], positive: Bool[np.ndarray, " films"]
) -> float | None:
    """Share of films whose positive prompt outscores the negative one exactly when it should.

    Args:
        margins: score of the positive prompt minus that of the negative; 0 decides negative.
        positive: the truth.

    Returns:
        A share in [0, 1]; None where there are no films.

    Raises:
        MetricError: the lengths differ, or a margin is not finite.

    Source: Wang et al. 2023, Section 3.3: the label is the prompt with the higher score.
    """
    _check(margins, positive)
    if len(positive) == 0:
        return None
    return float(((margins > 0) == positive).mean())


def balanced_accuracy(
    margins: Float[np.ndarray, " films"], positive: Bool[np.ndarray, " films"]
) -> float | None:
    """Mean of sensitivity and specificity at a margin of 0.

    Args:
        margins: score of the positive prompt minus that of the negative.
        positive: the truth.

    Returns:
        A share in [0, 1]; None where there are no positives or no negatives.

    Raises:
        MetricError: the lengths differ, or a margin is not finite.
    """
    _check(margins, positive)
    sensitivity = accuracy(margins[positive], positive[positive])
    specificity = accuracy(margins[~positive], positive[~positive])
    if sensitivity is None or specificity is None:
        return None
    return (sensitivity + specificity) / 2


def _check(scores: np.ndarray, positive: np.ndarray) -> None:
    if scores.shape != positive.shape or scores.ndim != 1:
        raise MetricError(
            f"{scores.shape} scores do not fit {positive.shape} labels; give one of each per film"
        )
    if not np.isfinite(scores).all():
        bad = int((~np.isfinite(scores)).sum())
        raise MetricError(f"{bad} scores are not finite; drop those films or repair the model")
