"""Binary classification: area under the ROC curve, its points, and accuracy.

How far probabilities are from shares: reliability, calibration error, Brier score.

Ranked retrieval: recall at K, median rank, and what chance would give.

Heatmap against box: contrast-to-noise ratio, mean IoU and the pointing game.

A heatmap may hold NaN where the model saw nothing (a crop's margin); such pixels are
left out of every figure. Pixel (row, column) covers [column, column + 1) x [row, row + 1)
and belongs to a box that contains its centre.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from medclip_dcl.errors import MetricError


def roc_auc(
    scores: Float[np.ndarray, " images"], positive: Bool[np.ndarray, " images"]
) -> float | None:
    """Chance that a positive image scores above a negative one, ties counted as half.

    Args:
        scores: higher means more likely positive; any finite scale.
        positive: the truth.

    Returns:
        The area in [0, 1]; None where there are no positives or no negatives.

    Raises:
        MetricError: the lengths differ, or a score is not finite.

    Source: Hanley and McNeil 1982 (Mann-Whitney form).
    """
    _check_scores(scores, positive)
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if positives == 0 or negatives == 0:
        return None
    _, index = np.unique(scores, return_inverse=True)
    hits = np.bincount(index[positive], minlength=index.max() + 1)
    misses = np.bincount(index[~positive], minlength=index.max() + 1)
    below = np.cumsum(misses) - misses
    return float((hits * (below + misses / 2)).sum() / (positives * negatives))


def roc_curve(
    scores: Float[np.ndarray, " images"], positive: Bool[np.ndarray, " images"]
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
    _check_scores(scores, positive)
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
    margins: Float[np.ndarray, " images"], positive: Bool[np.ndarray, " images"]
) -> float | None:
    """Share of images whose positive prompt outscores the negative one exactly when it should.

    Args:
        margins: score of the positive prompt minus that of the negative; 0 decides negative.
        positive: the truth.

    Returns:
        A share in [0, 1]; None where there are no images.

    Raises:
        MetricError: the lengths differ, or a margin is not finite.

    Source: Wang et al. 2023, Section 3.3: the label is the prompt with the higher score.
    """
    _check_scores(margins, positive)
    if len(positive) == 0:
        return None
    return float(((margins > 0) == positive).mean())


def balanced_accuracy(
    margins: Float[np.ndarray, " images"], positive: Bool[np.ndarray, " images"]
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
    _check_scores(margins, positive)
    sensitivity = accuracy(margins[positive], positive[positive])
    specificity = accuracy(margins[~positive], positive[~positive])
    if sensitivity is None or specificity is None:
        return None
    return (sensitivity + specificity) / 2


def _check_scores(scores: np.ndarray, positive: np.ndarray) -> None:
    if scores.shape != positive.shape or scores.ndim != 1:
        raise MetricError(
            f"{scores.shape} scores do not fit {positive.shape} labels; give one of each per image"
        )
    if not np.isfinite(scores).all():
        bad = int((~np.isfinite(scores)).sum())
        raise MetricError(f"{bad} scores are not finite; drop those images or repair the model")


BINS = 10
"""Bins of equal width between 0 and 1."""


@dataclass(frozen=True)
class Bin:
    """Images whose probability lies in one interval.

    Attributes:
        images: how many.
        probability: mean of what was said.
        share: share of them that have the finding.
    """

    images: int
    probability: float
    share: float


def reliability(
    probability: Float[np.ndarray, " images"],
    positive: Bool[np.ndarray, " images"],
    bins: int = BINS,
) -> list[Bin]:
    """Compare what was said with what was found, interval by interval.

    Args:
        probability: what was said, in [0, 1].
        positive: the truth.
        bins: number of intervals of equal width, closed on the left; the last on both sides.

    Returns:
        The intervals that hold an image, in ascending order.

    Raises:
        MetricError: the lengths differ, a probability is no number in [0, 1], or there are
            no bins.

    Source: DeGroot and Fienberg 1983; Guo et al. 2017, Section 2.
    """
    _check_probabilities(probability, positive, bins)
    images, said, found = _sums(probability, positive, bins)
    return [
        Bin(
            int(images[index]),
            float(said[index] / images[index]),
            float(found[index] / images[index]),
        )
        for index in np.flatnonzero(images)
    ]


def calibration_error(
    probability: Float[np.ndarray, " images"],
    positive: Bool[np.ndarray, " images"],
    bins: int = BINS,
) -> float | None:
    """Mean distance between what was said and what was found, weighted by images.

    Args:
        probability: what was said, in [0, 1].
        positive: the truth.
        bins: number of intervals of equal width.

    Returns:
        The expected calibration error in [0, 1]; None where there are no images.

    Raises:
        MetricError: as `reliability`.

    Source: Naeini et al. 2015; Guo et al. 2017, Eq. 3, for two classes.
    """
    _check_probabilities(probability, positive, bins)
    if not len(positive):
        return None
    _, said, found = _sums(probability, positive, bins)
    return float(np.abs(found - said).sum() / len(positive))


def brier_score(
    probability: Float[np.ndarray, " images"], positive: Bool[np.ndarray, " images"]
) -> float | None:
    """Mean squared distance between probability and truth.

    Args:
        probability: what was said, in [0, 1].
        positive: the truth.

    Returns:
        The score in [0, 1], 0 the best; None where there are no images.

    Raises:
        MetricError: the lengths differ, or a probability is no number in [0, 1].

    Source: Brier 1950, for two classes counted once.
    """
    _check_probabilities(probability, positive, 1)
    return float(((probability - positive) ** 2).mean()) if len(positive) else None


def _sums(
    probability: np.ndarray, positive: np.ndarray, bins: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Add up images, probabilities and positive images of every interval."""
    index = np.minimum((probability * bins).astype(int), bins - 1)
    images = np.bincount(index, minlength=bins)
    said = np.bincount(index, weights=probability, minlength=bins)
    return images, said, np.bincount(index, weights=positive, minlength=bins)


def _check_probabilities(probability: np.ndarray, positive: np.ndarray, bins: int) -> None:
    if probability.shape != positive.shape or probability.ndim != 1 or bins < 1:
        raise MetricError(
            f"{probability.shape} probabilities, {positive.shape} labels, {bins} bins; give one of "
            "each per image, and a bin"
        )
    if not ((probability >= 0) & (probability <= 1)).all():
        raise MetricError("a probability is no number between 0 and 1; repair the calibration")


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


def recall_at(ranks: Int[np.ndarray, " queries"], k: int) -> float | None:
    """Share of queries whose best correct item is among the first k.

    Args:
        ranks: from `best_ranks`, from 1.
        k: length of the list, at least 1.

    Returns:
        A share in [0, 1]; None where there are no queries.
    """
    return float((ranks <= k).mean()) if len(ranks) else None


def median_rank(ranks: Int[np.ndarray, " queries"]) -> float | None:
    """Median of the ranks.

    Args:
        ranks: from `best_ranks`, from 1.

    Returns:
        The median, at least 1; None where there are no queries.
    """
    return float(np.median(ranks)) if len(ranks) else None


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


PAPER_THRESHOLDS: tuple[float, ...] = tuple(step * 0.05 for step in range(-20, 21))
"""-1 to 1 in 41 steps, each an integer times 0.05, so that no error accumulates."""

BIOVIL_THRESHOLDS: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Thresholds of the BioViL-style variant; its clamp at 0 changes nothing above 0."""


def box_mask(
    boxes: Float[np.ndarray, "boxes 4"], height_px: int, width_px: int
) -> Bool[np.ndarray, "height width"]:
    """Mark the union of boxes.

    Args:
        boxes: x, y, width, height of each, pixels.
        height_px: height of the image.
        width_px: width of the image.

    Returns:
        True for every pixel whose centre lies in at least one box.
    """
    rows, columns = np.arange(height_px) + 0.5, np.arange(width_px) + 0.5
    mask = np.zeros((height_px, width_px), dtype=bool)
    for x, y, width, height in boxes:
        inside_rows = (rows >= y) & (rows < y + height)
        inside_columns = (columns >= x) & (columns < x + width)
        mask |= inside_rows[:, None] & inside_columns[None, :]
    return mask


def signed_cnr(
    heatmap: Float[np.ndarray, "height width"], mask: Bool[np.ndarray, "height width"]
) -> float | None:
    """Contrast-to-noise ratio: how far the inside of the boxes stands out, in deviations.

    Args:
        heatmap: scores; NaN where there is none.
        mask: union of the boxes.

    Returns:
        (mean inside - mean outside) / sqrt(variance inside + variance outside), with
        population variances; positive where the inside scores higher. The figure that
        papers report is its absolute value. None where the inside or the outside is
        empty, or where the heatmap is constant on both.

    Raises:
        MetricError: heatmap and mask differ in shape.

    Source: Boecking et al. 2022 (BioViL), Section 5; ours: the sign, NaN left out.
    """
    values, inside = _scored(heatmap, mask)
    within, without = values[inside], values[~inside]
    if len(within) == 0 or len(without) == 0:
        return None
    noise = within.var(dtype=np.float64) + without.var(dtype=np.float64)
    contrast = within.mean(dtype=np.float64) - without.mean(dtype=np.float64)
    return float(contrast / np.sqrt(noise)) if noise > 0 else None


def mean_iou(
    heatmap: Float[np.ndarray, "height width"],
    mask: Bool[np.ndarray, "height width"],
    thresholds: tuple[float, ...],
) -> float | None:
    """Overlap of the thresholded heatmap with the boxes, averaged over thresholds.

    Args:
        heatmap: scores, in [-1, 1]; NaN where there is none.
        mask: union of the boxes.
        thresholds: `PAPER_THRESHOLDS` or `BIOVIL_THRESHOLDS`; the two are not comparable.

    Returns:
        Mean IoU in [0, 1], 0 at a threshold where the union is empty; None where no
        pixel has a score.

    Raises:
        MetricError: heatmap and mask differ in shape.

    Source: Wang et al. 2023, Section 3.3.
    """
    values, inside = _scored(heatmap, mask)
    if len(values) == 0:
        return None
    within = values[inside]
    total = 0.0
    for threshold in thresholds:
        overlap = int(np.count_nonzero(within >= threshold))
        union = int(np.count_nonzero(values >= threshold)) + len(within) - overlap
        total += overlap / union if union else 0.0
    return total / len(thresholds)


def is_pointed_at(
    heatmap: Float[np.ndarray, "height width"], mask: Bool[np.ndarray, "height width"]
) -> bool | None:
    """Pointing game: whether the highest score lies in a box.

    Args:
        heatmap: scores; NaN where there is none.
        mask: union of the boxes.

    Returns:
        True where every pixel that attains the maximum is inside (a tie with the outside
        is a miss); None where no pixel has a score.

    Raises:
        MetricError: heatmap and mask differ in shape.

    Source: Zhang et al. 2018 (excitation backprop); ours: ties are misses.
    """
    values, inside = _scored(heatmap, mask)
    if len(values) == 0:
        return None
    return bool(inside[values == values.max()].all())


def _scored(heatmap: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if heatmap.shape != mask.shape:
        raise MetricError(
            f"heatmap {heatmap.shape} and mask {mask.shape} differ; upsample to the image's size"
        )
    valid = ~np.isnan(heatmap)
    if valid.all():
        return heatmap.ravel(), mask.ravel()
    return heatmap[valid], mask[valid]
