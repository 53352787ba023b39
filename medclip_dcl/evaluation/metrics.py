"""Metrics of weighted units: classification, probabilities, ranks.

A metric gives a figure in every bootstrap sample (see `bootstrap`), NaN where the sample does
not define it; without weights, that of the data alone, which `value_of` turns into a number.

scikit-learn has most of them with `sample_weight`, but takes one vector of weights a call: for
1,000 images and 1,001 samples `roc_auc_score` needs 58 times the time of `roc_auc` (2.7 s, 0.05 s
on one core). So they are ours, and the tests compare each with scikit-learn's.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from medclip_dcl.errors import MetricError
from medclip_dcl.evaluation.bootstrap import Samples, Weights

Scores = Float[np.ndarray, " U"]
IsTrue = Bool[np.ndarray, " U"]
Ranks = Int[np.ndarray, " U"]

BINS = 10
"""Bins of equal width between 0 and 1."""


def value_of(samples: Samples) -> float | None:
    """Give a metric of the data themselves; None where it is undefined."""
    return None if np.isnan(samples[0]) else float(samples[0])


def mean(values: Scores, weights: Weights | None = None) -> Samples:
    """Average the units whose value is defined, that is, not NaN."""
    known = ~np.isnan(values)
    each = _weights(values, weights)[:, known]
    return _ratio(each @ values[known], each.sum(axis=1))


def median(values: Float[np.ndarray, " U"] | Ranks, weights: Weights | None = None) -> Samples:
    """Median; that of an even number is the mean of the middle two."""
    each = _weights(values, weights)
    if len(values) == 0:
        return np.full(len(each), np.nan)
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(each[:, order], axis=1)
    total = reached[:, -1:]
    lower, upper = (
        values[order][(reached >= rank).argmax(axis=1)]
        for rank in ((total + 1) // 2, total // 2 + 1)
    )
    found: np.ndarray = np.where(total[:, 0] > 0, (lower + upper) / 2, np.nan)
    return found


def mean_of(parts: Sequence[Samples] | Float[np.ndarray, "parts S"]) -> Samples:
    """Average figures sample by sample, over those that the sample defines."""
    values = np.stack([*parts])
    known = ~np.isnan(values)
    return _ratio(np.where(known, values, 0.0).sum(axis=0), known.sum(axis=0))


def roc_auc(scores: Scores, positive: IsTrue, weights: Weights | None = None) -> Samples:
    """Chance that a positive image scores above a negative one, ties counted as half.

    Args:
        scores: higher means more likely positive; any finite scale.
        positive: the truth.
        weights: of the images.

    Returns:
        The area in [0, 1]; undefined where a class is empty.

    Raises:
        MetricError: the lengths differ, or a score is not finite.

    Source: Hanley and McNeil 1982 (Mann-Whitney form).
    """
    _check_scores(scores, positive)
    each = _weights(scores, weights)
    levels, level = np.unique(scores, return_inverse=True)
    hits, misses = (
        _by_level(each[:, own], level[own], len(levels)) for own in (positive, ~positive)
    )
    below = np.cumsum(misses, axis=1) - misses  # weight of negatives below each level
    pairs = hits.sum(axis=1) * misses.sum(axis=1)
    return _ratio((hits * (below + misses / 2)).sum(axis=1), pairs)


def accuracy(margins: Scores, positive: IsTrue, weights: Weights | None = None) -> Samples:
    """Share of images whose positive prompt outscores the negative one exactly when it should.

    Args:
        margins: score of the positive prompt minus that of the negative; 0 decides negative.
        positive: the truth.
        weights: of the images.

    Raises:
        MetricError: the lengths differ, or a margin is not finite.

    Source: Wang et al. 2023, Section 3.3: the label is the prompt with the higher score.
    """
    _check_scores(margins, positive)
    return mean(((margins > 0) == positive).astype(float), weights)


def balanced_accuracy(margins: Scores, positive: IsTrue, weights: Weights | None = None) -> Samples:
    """Mean of sensitivity and specificity, as `accuracy`; undefined where a class is empty."""
    each = _weights(margins, weights)
    sides = [accuracy(margins[own], positive[own], each[:, own]) for own in (positive, ~positive)]
    both: np.ndarray = (sides[0] + sides[1]) / 2
    return both


CLASSIFICATION = {"auc": roc_auc, "accuracy": accuracy, "balanced_accuracy": balanced_accuracy}


def mean_over_findings(
    findings: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> dict[str, Samples]:
    """Average the figures of several findings.

    Args:
        findings: margins, truth and weights of the images of each whose truth is known.

    Returns:
        `mean_auc`, `mean_accuracy` and `mean_balanced_accuracy`, each over the findings that
        have both classes in the sample; nothing where there is no finding.
    """
    found = [[of(*finding) for of in CLASSIFICATION.values()] for finding in findings]
    if not found:
        return {}
    values = np.stack(found)  # (findings, figures, samples)
    values[np.isnan(values[:, :1]).repeat(len(CLASSIFICATION), axis=1)] = np.nan
    return {f"mean_{name}": mean_of(values[:, row]) for row, name in enumerate(CLASSIFICATION)}


@dataclass(frozen=True)
class Bin:
    """Images whose probability is in one interval.

    Attributes:
        images: how many.
        probability: mean of what was said.
        share: share of them that have the finding.
    """

    images: int
    probability: float
    share: float


def reliability(probability: Scores, positive: IsTrue, bins: int = BINS) -> list[Bin]:
    """Compare what was said with what was found, interval by interval.

    Args:
        probability: what was said, in [0, 1].
        positive: the truth.
        bins: number of intervals of equal width, closed on the left; the last on both sides.

    Returns:
        The intervals that hold an image, in ascending order.

    Raises:
        MetricError: the lengths differ, a probability is not a number in [0, 1], or there are
            no bins.

    Source: DeGroot and Fienberg 1983; Guo et al. 2017, Section 2.
    """
    index = _bins(probability, positive, bins)
    return [
        Bin(int(own.sum()), float(probability[own].mean()), float(positive[own].mean()))
        for own in (index == number for number in np.unique(index))
    ]


def calibration_error(
    probability: Scores, positive: IsTrue, weights: Weights | None = None, bins: int = BINS
) -> Samples:
    """Mean distance between what was said and what was found, weighted by images.

    Returns:
        The expected calibration error in [0, 1].

    Raises:
        MetricError: as `reliability`.

    Source: Naeini et al. 2015; Guo et al. 2017, Eq. 3, for two classes.
    """
    index = _bins(probability, positive, bins)
    each = _weights(probability, weights)
    off = positive - probability
    total = np.zeros(len(each))
    for number in np.unique(index):
        own = index == number
        total += np.abs(each[:, own] @ off[own])
    return _ratio(total, each.sum(axis=1))


def brier_score(probability: Scores, positive: IsTrue, weights: Weights | None = None) -> Samples:
    """Mean squared distance between probability and truth, in [0, 1], 0 the best.

    Raises:
        MetricError: the lengths differ, or a probability is not a number in [0, 1].

    Source: Brier 1950, for two classes counted once.
    """
    _bins(probability, positive, 1)
    return mean((probability - positive) ** 2, weights)


def best_ranks(
    scores: Float[np.ndarray, "queries items"], correct: Bool[np.ndarray, "queries items"]
) -> Int[np.ndarray, " queries"]:
    """Rank of each query's best correct item, ties resolved against it.

    Args:
        scores: of every item for every query; higher is better.
        correct: whether the item answers the query; at least one per query does.

    Returns:
        1 + the number of wrong items that score at least as high as the best correct one.

    Raises:
        MetricError: shapes differ, a score is not finite, or a query has no correct item.

    Source: ours; pessimistic, so a model that scores everything alike ranks last.
    """
    if scores.shape != correct.shape:
        raise MetricError(f"scores {scores.shape} and truth {correct.shape} differ in shape")
    if not np.isfinite(scores).all():
        raise MetricError("a retrieval score is not finite; repair the model")
    orphans = int((~correct.any(axis=1)).sum()) if len(scores) else 0
    if orphans:
        raise MetricError(f"{orphans} queries have no correct item; leave them out of the pool")
    best = np.where(correct, scores, -np.inf).max(axis=1, keepdims=True, initial=-np.inf)
    wrong_above: np.ndarray = ((scores >= best) & ~correct).sum(axis=1)
    return 1 + wrong_above


def recall_at(ranks: Ranks, k: int, weights: Weights | None = None) -> Samples:
    """Share of queries whose best correct item is among the first k."""
    return mean((ranks <= k).astype(float), weights)


def chance_recall(correct: Bool[np.ndarray, "queries items"], k: int) -> float | None:
    """Expected recall at k of a random order.

    Args:
        correct: whether the item answers the query.
        k: length of the list, at least 1.

    Returns:
        Mean over queries of 1 - C(n - c, k) / C(n, k), with c of n items correct; None
        where there are no queries.
    """
    queries, items = correct.shape
    if queries == 0:
        return None
    length = min(k, items)
    counts, repeats = np.unique(correct.sum(axis=1), return_counts=True)
    whole = math.comb(items, length)
    misses = [math.comb(items - int(count), length) / whole for count in counts]
    return float(1 - np.average(misses, weights=repeats))


def _weights(units: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    return np.ones((1, len(units)), dtype=np.int64) if weights is None else weights


def _by_level(weights: np.ndarray, level: np.ndarray, levels: int) -> np.ndarray:
    """Add up the weights of the units of each level: (samples, levels)."""
    order = np.argsort(level, kind="stable")
    added = np.zeros((len(weights), levels))
    present, start = np.unique(level[order], return_index=True)
    if len(present):
        # reduceat would repeat a neighbour's value for a level without units: only those present
        added[:, present] = np.add.reduceat(weights[:, order], start, axis=1)
    return added


def _ratio(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    ratio: np.ndarray = np.where(count > 0, total / np.where(count > 0, count, 1), np.nan)
    return ratio


def _check_scores(scores: np.ndarray, positive: np.ndarray) -> None:
    if scores.shape != positive.shape or scores.ndim != 1:
        raise MetricError(
            f"{scores.shape} scores do not fit {positive.shape} labels; give one of each per image"
        )
    if not np.isfinite(scores).all():
        bad = int((~np.isfinite(scores)).sum())
        raise MetricError(f"{bad} scores are not finite; drop those images or repair the model")


def _bins(probability: np.ndarray, positive: np.ndarray, bins: int) -> np.ndarray:
    """Number of the interval that each probability is in."""
    if probability.shape != positive.shape or probability.ndim != 1 or bins < 1:
        raise MetricError(
            f"{probability.shape} probabilities, {positive.shape} labels, {bins} bins; give one of "
            "each per image, and a bin"
        )
    if not ((probability >= 0) & (probability <= 1)).all():
        raise MetricError("a probability is not a number in [0, 1]; repair the calibration")
    index: np.ndarray = np.minimum((probability * bins).astype(int), bins - 1)
    return index
