"""Metrics of weighted units, and their intervals over patients.

Images of one patient are not independent, so patients are drawn. A bootstrap sample is a row of
weights: a patient who is drawn twice weighs 2, one who is not drawn weighs 0, and a metric of
weighted units is that of the units repeated as often. Row 0 is the data as they are; without
weights a metric is that of the data alone, which `value_of` turns into a number.

Axes
    S  bootstrap samples, the data themselves first
    U  units that are measured: images, boxes or queries

scikit-learn has most of them with `sample_weight`, but takes one vector of weights a call: for
1,000 images and 1,001 samples `roc_auc_score` needs 58 times the time of `roc_auc` (2.7 s, 0.05 s
on one core). So they are ours, and the tests compare each with scikit-learn's.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from medclip_dcl.core.errors import MetricError

Weights = Int[np.ndarray, "S U"]
Samples = Float[np.ndarray, " S"]  # A figure in every sample; NaN where it is undefined
Scores = Float[np.ndarray, " U"]
IsTrue = Bool[np.ndarray, " U"]
Ranks = Int[np.ndarray, " U"] | Float[np.ndarray, " U"]

_FLAT = 1e-7  # deviation of scores in [-1, 1] below which they differ by rounding alone, float32
_BINS = 10  # of probabilities, of equal width, closed on the left
_LEVEL = 0.95
_LEAST_DEFINED = 0.5  # share of samples in which a figure must exist to have an interval
_BLOCK = 4_000_000  # weights that are measured at once; metrics hold a few arrays of this size


@dataclass(frozen=True)
class Figure:
    """A measured number, the units and patients it rests on, and its 95 % interval if any.

    `reason` says why there is no value.
    """

    value: float | None
    n: int
    subjects: int
    low: float | None = None
    high: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class BootstrapOptions:
    """Number of bootstrap samples (0: no intervals), and their seed."""

    samples: int
    seed: int

    def generator(self) -> np.random.Generator:
        """Start the stream of draws; every question starts it again."""
        return np.random.default_rng(self.seed)


def patient_weights(
    patients: int, samples: int, generator: np.random.Generator
) -> Int[np.ndarray, "S patients"]:
    """Draw patients with replacement, as many as there are; the first row is 1 throughout."""
    if patients < 1 or samples < 0:
        raise MetricError(
            f"{patients} patients, {samples} bootstrap samples; give 1 and 0 at least"
        )
    weights = np.ones((samples + 1, patients), dtype=np.int64)
    for row in weights[1:]:
        row[:] = np.bincount(generator.integers(patients, size=patients), minlength=patients)
    return weights


def unit_weights(
    weights: Int[np.ndarray, "S patients"], patients: Sequence[str], owners: Sequence[str]
) -> Weights:
    """Return every unit the weight of its owner; `patients` names the columns of `weights`."""
    column = {name: index for index, name in enumerate(patients)}
    return weights[:, [column[owner] for owner in owners]]


def estimate(
    measure: Callable[[Weights], Mapping[str, Samples]],
    subjects: Sequence[str],
    bootstrap: BootstrapOptions,
    undefined: str | Mapping[str, str],
) -> dict[str, Figure]:
    """Measure figures with their 95 % percentile intervals over patients.

    `measure` turns weights of the units into figures by name, `subjects` are the units' patients,
    and `undefined` is the reason given where the data do not define a figure, or one by its name.

    Source: Efron and Tibshirani 1993, chapter 13 (percentile interval), with patients
        as what is drawn.
    """
    weights = np.ones((bootstrap.samples + 1, 0), dtype=np.int64)
    if subjects:
        patients = sorted(set(subjects))
        drawn = patient_weights(len(patients), bootstrap.samples, bootstrap.generator())
        weights = unit_weights(drawn, patients, subjects)
    # Rows of weights are measured a block at a time: all of them may be gigabytes.
    rows = max(1, _BLOCK // max(1, len(subjects)))
    blocks = [measure(weights[start : start + rows]) for start in range(0, len(weights), rows)]
    reasons = dict.fromkeys(blocks[0], undefined) if isinstance(undefined, str) else undefined
    return {
        name: summarise(np.concatenate([block[name] for block in blocks]), subjects, reasons[name])
        for name in blocks[0]
    }


def summarise(values: Samples, subjects: Sequence[str], undefined: str) -> Figure:
    """Turn a figure's samples into its value and 95 % interval.

    There is no interval where half of the samples or more do not define it, or where it rests on
    one patient.
    """
    value, drawn = float(values[0]), values[1:]
    defined = drawn[~np.isnan(drawn)]
    patients = len(set(subjects))
    if np.isnan(value):
        return Figure(None, len(subjects), patients, reason=undefined)
    if patients < 2 or len(defined) <= _LEAST_DEFINED * len(drawn):
        return Figure(value, len(subjects), patients)
    # Samples without the figure are left out, which is why they must be a minority.
    low, high = np.quantile(defined, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2]).tolist()
    return Figure(value, len(subjects), patients, low, high)


def value_of(samples: Samples) -> float | None:
    """Return a metric of the data themselves; None where it is undefined."""
    return None if np.isnan(samples[0]) else float(samples[0])


def mean(values: Scores, weights: Weights | None = None) -> Samples:
    """Average the units whose value is defined, that is, not NaN."""
    is_defined = ~np.isnan(values)
    each = _weights(values, weights)[:, is_defined]
    return _ratio(each @ values[is_defined], each.sum(axis=1))


def median(values: Scores | Ranks, weights: Weights | None = None) -> Samples:
    """Median; that of an even number is the mean of the middle two."""
    each = _weights(values, weights)
    if len(values) == 0:
        return np.full(len(each), np.nan)
    # The middle two of the repeated values, found in the added-up weights without repeating any.
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(each[:, order], axis=1)
    total = reached[:, -1:]
    lower, upper = (
        values[order][(reached >= rank).argmax(axis=1)]
        for rank in ((total + 1) // 2, total // 2 + 1)
    )
    middle: np.ndarray = np.where(total[:, 0] > 0, (lower + upper) / 2, np.nan)
    return middle


def mean_of(parts: Sequence[Samples] | Float[np.ndarray, "parts S"]) -> Samples:
    """Average figures sample by sample, over those that the sample defines."""
    values = np.stack([*parts])
    is_defined = ~np.isnan(values)
    return _ratio(np.where(is_defined, values, 0.0).sum(axis=0), is_defined.sum(axis=0))


def roc_auc(scores: Scores, positive: IsTrue, weights: Weights | None = None) -> Samples:
    """Chance that a positive image scores above a negative one, ties counted as half.

    Undefined where a class is empty; MetricError where a score is not finite.

    Source: Hanley and McNeil 1982 (Mann-Whitney form).
    """
    _check_scores(scores, positive)
    each = _weights(scores, weights)
    # Images of one score are one level: a positive wins against all below it, half of its own.
    levels, level = np.unique(scores, return_inverse=True)
    hits, misses = (
        _by_level(each[:, own], level[own], len(levels)) for own in (positive, ~positive)
    )
    below = np.cumsum(misses, axis=1) - misses  # weight of negatives below each level
    pairs = hits.sum(axis=1) * misses.sum(axis=1)
    return _ratio((hits * (below + misses / 2)).sum(axis=1), pairs)


def balanced_accuracy(margins: Scores, positive: IsTrue, weights: Weights | None = None) -> Samples:
    """Mean of sensitivity and specificity where a finding is called present above a margin of 0.

    Undefined where a class is empty; MetricError where a margin is not finite.

    Source: Wang et al. 2023, Section 3.2: the label is the prompt with the higher score.
    """
    _check_scores(margins, positive)
    each, is_right = _weights(margins, weights), ((margins > 0) == positive).astype(float)
    sides = [mean(is_right[own], each[:, own]) for own in (positive, ~positive)]
    both: np.ndarray = (sides[0] + sides[1]) / 2
    return both


def average_precision(scores: Scores, positive: IsTrue, weights: Weights | None = None) -> Samples:
    """Area under the precision-recall curve (AUPRC), by steps, equal scores counted as one step.

    Undefined without a positive image; MetricError where a score is not finite. By chance it is the
    share of positive images.

    Source: Davis and Goadrich 2006, without interpolation, as scikit-learn's.
    """
    _check_scores(scores, positive)
    each = _weights(scores, weights)
    levels, level = np.unique(-scores, return_inverse=True)  # from the highest score down
    hits, named = (
        _by_level(each[:, own], level[own], len(levels))
        for own in (positive, np.ones_like(positive))
    )
    precision = _ratio(np.cumsum(hits, axis=1), np.cumsum(named, axis=1))
    steps = np.where(hits > 0, hits * precision, 0.0)
    return _ratio(steps.sum(axis=1), hits.sum(axis=1))


def confusion_metrics(
    margins: Scores, positive: IsTrue, threshold: float, weights: Weights | None = None
) -> dict[str, Samples]:
    """Measure the decision that a finding is present from a margin of `threshold` on.

    `sensitivity` and `specificity` are undefined without an image of their class, `ppv` and `npv`
    where no image is called so, `f1` without a positive image, `mcc` with one class alone. Where
    all images are called alike `mcc` is 0.

    Source: Matthews 1975 (MCC); van Rijsbergen 1979 (F1).
    """
    _check_scores(margins, positive)
    each = _weights(margins, weights)
    called = margins >= threshold
    # Floats: the product below is too large for integers.
    tp, fp, fn, tn = (
        each[:, own].sum(axis=1).astype(np.float64)
        for own in (called & positive, called & ~positive, ~called & positive, ~called & ~positive)
    )
    spread = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    mcc = np.where(spread > 0, (tp * tn - fp * fn) / np.where(spread > 0, spread, 1.0), 0.0)
    return {
        "sensitivity": _ratio(tp, tp + fn),
        "specificity": _ratio(tn, tn + fp),
        "ppv": _ratio(tp, tp + fp),
        "npv": _ratio(tn, tn + fn),
        "f1": np.where(tp + fn > 0, _ratio(2 * tp, 2 * tp + fp + fn), np.nan),
        "mcc": np.where((tp + fn > 0) & (tn + fp > 0), mcc, np.nan),
    }


def pearson_correlation(x: Scores, y: Scores) -> float | None:
    """Pearson's correlation of two scores of each unit, in [-1, 1].

    None where a score has one value, but for what float32 rounds; MetricError where a score is
    not finite.

    Source: Pearson 1895.
    """
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise MetricError("a score to correlate is not finite; repair the model")
    if len(x) == 0 or min(x.std(), y.std()) <= _FLAT:
        return None
    return float(np.clip(np.corrcoef(x, y)[0, 1], -1.0, 1.0))


def calibration_error(
    probability: Scores, positive: IsTrue, weights: Weights | None = None, bins: int = _BINS
) -> Samples:
    """Expected calibration error, in [0, 1]: mean distance of probability and share, by bins.

    MetricError where a probability is not a number in [0, 1].

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

    Source: Brier 1950, for two classes counted once.
    """
    _bins(probability, positive, 1)
    return mean((probability - positive) ** 2, weights)


def best_ranks(
    scores: Float[np.ndarray, "queries items"], correct: Bool[np.ndarray, "queries items"]
) -> Int[np.ndarray, " queries"]:
    """Rank of each query's best correct item: 1 + the wrong items that score at least as high.

    MetricError where a score is not finite, or a query has no correct item.

    Source: ours; pessimistic, so a model that scores everything alike ranks last.
    """
    if scores.shape != correct.shape:
        raise MetricError(f"scores {scores.shape} and truth {correct.shape} differ in shape")
    if not np.isfinite(scores).all():
        raise MetricError("a retrieval score is not finite; repair the model")
    orphans = int((~correct.any(axis=1)).sum()) if len(scores) else 0
    if orphans:
        raise MetricError(f"{orphans} queries have no correct item; leave them out of the pool")
    # Counting wrong items needs no sort.
    best = np.where(correct, scores, -np.inf).max(axis=1, keepdims=True, initial=-np.inf)
    ranks: np.ndarray = 1 + ((scores >= best) & ~correct).sum(axis=1)
    return ranks


def recall_at(ranks: Ranks, k: int, weights: Weights | None = None) -> Samples:
    """Share of queries whose best correct item is among the first k."""
    return mean((ranks <= k).astype(float), weights)


def chance_recall(correct: Bool[np.ndarray, "queries items"], k: int) -> float | None:
    """Expected recall at k of a random order; None without queries.

    Mean over queries of 1 - C(n - c, k) / C(n, k), with c of n items correct.
    """
    queries, items = correct.shape
    if queries == 0:
        return None
    length = min(k, items)  # a list longer than the pool finds all
    counts, repeats = np.unique(correct.sum(axis=1), return_counts=True)
    whole = math.comb(items, length)
    misses = [math.comb(items - int(count), length) / whole for count in counts]
    return float(1 - np.average(misses, weights=repeats))


def _weights(units: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    return np.ones((1, len(units)), dtype=np.int64) if weights is None else weights


def _by_level(weights: np.ndarray, level: np.ndarray, levels: int) -> np.ndarray:
    """Add up the weights of the units of each level: (samples, levels)."""
    order = np.argsort(level, kind="stable")  # reduceat adds runs of units
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
    if probability.shape != positive.shape or probability.ndim != 1 or bins < 1:
        raise MetricError(
            f"{probability.shape} probabilities, {positive.shape} labels, {bins} bins; give one of "
            "each per image, and a bin"
        )
    if not ((probability >= 0) & (probability <= 1)).all():
        raise MetricError("a probability is not a number in [0, 1]; repair the calibration")
    index: np.ndarray = np.minimum((probability * bins).astype(int), bins - 1)
    return index
