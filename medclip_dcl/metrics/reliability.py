"""How far probabilities are from shares: reliability, calibration error, Brier score."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from medclip_dcl.errors import MetricError

BINS = 10
"""Bins of equal width between 0 and 1."""


@dataclass(frozen=True)
class Bin:
    """Films whose probability lies in one interval.

    Attributes:
        films: how many.
        probability: mean of what was said.
        share: share of them that have the finding.
    """

    films: int
    probability: float
    share: float


def reliability(
    probability: Float[np.ndarray, " films"], positive: Bool[np.ndarray, " films"], bins: int = BINS
) -> list[Bin]:
    """Compare what was said with what was found, interval by interval.

    Args:
        probability: what was said, in [0, 1].
        positive: the truth.
        bins: number of intervals of equal width, closed on the left; the last on both sides.

    Returns:
        The intervals that hold a film, in ascending order.

    Raises:
        MetricError: the lengths differ, a probability is no number in [0, 1], or there are
            no bins.

    Source: DeGroot and Fienberg 1983; Guo et al. 2017, Section 2.
    """
    _check(probability, positive, bins)
    films, said, found = _sums(probability, positive, bins)
    return [
        Bin(
            int(films[place]), float(said[place] / films[place]), float(found[place] / films[place])
        )
        for place in np.flatnonzero(films)
    ]


def calibration_error(
    probability: Float[np.ndarray, " films"], positive: Bool[np.ndarray, " films"], bins: int = BINS
) -> float | None:
    """Mean distance between what was said and what was found, weighted by films.

    Args:
        probability: what was said, in [0, 1].
        positive: the truth.
        bins: number of intervals of equal width.

    Returns:
        The expected calibration error in [0, 1]; None where there are no films.

    Raises:
        MetricError: as `reliability`.

    Source: Naeini et al. 2015; Guo et al. 2017, Eq. 3, for two classes.
    """
    _check(probability, positive, bins)
    if not len(positive):
        return None
    _, said, found = _sums(probability, positive, bins)
    return float(np.abs(found - said).sum() / len(positive))


def brier_score(
    probability: Float[np.ndarray, " films"], positive: Bool[np.ndarray, " films"]
) -> float | None:
    """Mean squared distance between probability and truth.

    Args:
        probability: what was said, in [0, 1].
        positive: the truth.

    Returns:
        The score in [0, 1], 0 the best; None where there are no films.

    Raises:
        MetricError: the lengths differ, or a probability is no number in [0, 1].

    Source: Brier 1950, for two classes counted once.
    """
    _check(probability, positive, 1)
    return float(((probability - positive) ** 2).mean()) if len(positive) else None


def _sums(
    probability: np.ndarray, positive: np.ndarray, bins: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Add up films, probabilities and positive films of every interval."""
    place = np.minimum((probability * bins).astype(int), bins - 1)
    films = np.bincount(place, minlength=bins)
    said = np.bincount(place, weights=probability, minlength=bins)
    return films, said, np.bincount(place, weights=positive, minlength=bins)


def _check(probability: np.ndarray, positive: np.ndarray, bins: int) -> None:
    if probability.shape != positive.shape or probability.ndim != 1 or bins < 1:
        raise MetricError(
            f"{probability.shape} probabilities, {positive.shape} labels, {bins} bins; give one of "
            "each per film, and a bin"
        )
    if not ((probability >= 0) & (probability <= 1)).all():
        raise MetricError("a probability is no number between 0 and 1; repair the calibration")
