"""Intervals by resampling patients, since images of one patient are not independent.

Figures of every bootstrap sample at once: a resample of patients as a row of weights.

A patient who is drawn twice weighs 2, one who is not drawn weighs 0; the figures are those
of the rows repeated as often. Row 0 of the weights is the data as they are.

Axes
    S      bootstrap samples, the data themselves first
    U      units that are measured: images, boxes or queries

Figures whose bootstrap samples were all computed at once, by `resampled`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from medclip_dcl.errors import MetricError

_LEVEL = 0.95
_LEAST_DEFINED = 0.5  # share of resamples in which a figure must exist to have an interval


@dataclass(frozen=True)
class Figure:
    """A measured number with what it rests on.

    Attributes:
        value: the number; None where it is undefined, and `reason` says why.
        n: images, boxes or queries that it rests on.
        subjects: patients that it rests on.
        low: lower end of its 95 % interval; None where there is none.
        high: upper end of its 95 % interval; None where there is none.
        reason: why value is None, else empty.
    """

    value: float | None
    n: int
    subjects: int
    low: float | None = None
    high: float | None = None
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Give the fields as plain values.

        Returns:
            Field name -> value; never a NaN.
        """
        return asdict(self)


def estimate(
    statistic: Callable[[Int[np.ndarray, " rows"]], Mapping[str, float | None]],
    subjects: Sequence[str],
    samples: int,
    generator: np.random.Generator,
    undefined: str,
) -> dict[str, Figure]:
    """Measure figures on all rows, with 95 % percentile intervals over patients.

    Args:
        statistic: row numbers, repeats included, -> figures by name; None: undefined.
        subjects: the patient of every row.
        samples: bootstrap samples; 0: no intervals.
        generator: source of the resamples.
        undefined: reason that is given where a figure is undefined.

    Returns:
        The figures by name. A figure that is undefined in half of the resamples or
        more, or that rests on one patient, has no interval.

    Raises:
        MetricError: the number of samples is negative.

    Source: Efron and Tibshirani 1993, chapter 13 (percentile interval), with patients
        as the unit that is drawn.
    """
    if samples < 0:
        raise MetricError(f"{samples} bootstrap samples; ask for 0 or more")
    everything = np.arange(len(subjects))
    values = statistic(everything)
    names, owner = np.unique(np.asarray(subjects, dtype=str), return_inverse=True)
    rows_of = np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])
    drawn: dict[str, list[float]] = {name: [] for name in values}
    for _ in range(samples if len(names) > 1 else 0):
        chosen = generator.integers(len(names), size=len(names))
        resampled = statistic(np.concatenate([rows_of[index] for index in chosen]))
        for name, value in resampled.items():
            if value is not None:
                drawn[name].append(value)
    return {
        name: Figure(
            value=value,
            n=len(subjects),
            subjects=len(names),
            low=_quantile(drawn[name], (1 - _LEVEL) / 2, samples),
            high=_quantile(drawn[name], (1 + _LEVEL) / 2, samples),
            reason=undefined if value is None else "",
        )
        for name, value in values.items()
    }


def _quantile(values: list[float], share: float, samples: int) -> float | None:
    if not values or len(values) <= _LEAST_DEFINED * samples:
        return None
    return float(np.quantile(values, share))


def patient_weights(
    patients: int, samples: int, generator: np.random.Generator
) -> Int[np.ndarray, "samples_and_one patients"]:
    """Draw patients with replacement.

    Args:
        patients: how many there are, at least 1.
        samples: how often they are drawn, at least 0.
        generator: source of the draws.

    Returns:
        How often each patient was drawn; the first row is 1 throughout.

    Raises:
        MetricError: there is no patient, or the number of samples is negative.
    """
    if patients < 1 or samples < 0:
        raise MetricError(f"{patients} patients, {samples} samples; give 1 and 0 at least")
    drawn = generator.multinomial(patients, np.full(patients, 1 / patients), size=samples)
    return np.vstack([np.ones((1, patients), dtype=np.int64), drawn.astype(np.int64)])


def unit_weights(
    weights: Int[np.ndarray, "S patients"], patients: Sequence[str], owners: Sequence[str]
) -> Int[np.ndarray, "S U"]:
    """Give every unit the weight of its patient.

    Args:
        weights: from `patient_weights`.
        patients: name of each of its columns.
        owners: the patient of every unit.

    Returns:
        The weights of the units.
    """
    column = {name: index for index, name in enumerate(patients)}
    return weights[:, [column[owner] for owner in owners]]


def resampled_mean(
    values: Float[np.ndarray, " U"], weights: Int[np.ndarray, "S U"]
) -> Float[np.ndarray, " S"]:
    """Average a quantity over the units where it is defined.

    Args:
        values: one per unit; not a number where it is undefined.
        weights: of the units.

    Returns:
        The mean in every sample; not a number where no unit has a value.
    """
    known = ~np.isnan(values)
    return _ratio(weights[:, known] @ values[known], weights[:, known].sum(axis=1))


def resampled_auc(
    scores: Float[np.ndarray, " U"],
    positive: Bool[np.ndarray, " U"],
    weights: Int[np.ndarray, "S U"],
) -> Float[np.ndarray, " S"]:
    """Chance that a positive unit scores above a negative one, ties counted as half.

    Args:
        scores: higher means more likely positive.
        positive: the truth.
        weights: of the units.

    Returns:
        The area in every sample; not a number where a class is empty.

    Source: `classification.roc_auc`, with weights.
    """
    levels, index = np.unique(scores, return_inverse=True)
    hits, misses = (
        _by_level(weights[:, own], index[own], len(levels)) for own in (positive, ~positive)
    )
    below = np.cumsum(misses, axis=1) - misses
    pairs = hits.sum(axis=1) * misses.sum(axis=1)
    return _ratio((hits * (below + misses / 2)).sum(axis=1), pairs)


def resampled_balanced_accuracy(
    margins: Float[np.ndarray, " U"],
    positive: Bool[np.ndarray, " U"],
    weights: Int[np.ndarray, "S U"],
) -> Float[np.ndarray, " S"]:
    """Mean of sensitivity and specificity at a margin of 0.

    Args:
        margins: score of the positive prompt minus that of the negative.
        positive: the truth.
        weights: of the units.

    Returns:
        A share in every sample; not a number where a class is empty.
    """
    right = ((margins > 0) == positive).astype(float)
    sides = [resampled_mean(right[own], weights[:, own]) for own in (positive, ~positive)]
    mean: np.ndarray = (sides[0] + sides[1]) / 2
    return mean


def resampled_median(
    values: Float[np.ndarray, " U"], weights: Int[np.ndarray, "S U"]
) -> Float[np.ndarray, " S"]:
    """Median of a quantity; that of an even number is the mean of the middle two.

    Args:
        values: one per unit.
        weights: of the units.

    Returns:
        The median in every sample; not a number where all weights are 0.
    """
    if len(values) == 0:
        return np.full(len(weights), np.nan)
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[:, order], axis=1)
    total = reached[:, -1:]
    lower, upper = (
        values[order][(reached >= rank).argmax(axis=1)]
        for rank in ((total + 1) // 2, total // 2 + 1)
    )
    median: np.ndarray = np.where(total[:, 0] > 0, (lower + upper) / 2, np.nan)
    return median


def _by_level(weights: np.ndarray, level: np.ndarray, levels: int) -> np.ndarray:
    """Add up the weights of the units of each level."""
    order = np.argsort(level, kind="stable")
    added = np.zeros((len(weights), levels))
    present, start = np.unique(level[order], return_index=True)
    if len(present):
        added[:, present] = np.add.reduceat(weights[:, order], start, axis=1)
    return added


def _ratio(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    ratio: np.ndarray = np.where(count > 0, total / np.where(count > 0, count, 1), np.nan)
    return ratio


_TAILS = (0.025, 0.975)


def draw_weights(
    subjects: Sequence[str], samples: int, generator: np.random.Generator
) -> Int[np.ndarray, "samples_and_one units"]:
    """Resample patients.

    Args:
        subjects: the patient of every unit; at least one.
        samples: bootstrap samples; 0: the data alone.
        generator: source of the draws.

    Returns:
        Weight of every unit in every sample; the first row is 1 throughout.
    """
    patients = sorted(set(subjects))
    return unit_weights(patient_weights(len(patients), samples, generator), patients, subjects)


def sampled_figure(
    values: Float[np.ndarray, " samples_and_one"], subjects: Sequence[str], undefined: str
) -> Figure:
    """Sum up one figure over its samples.

    Args:
        values: of the data themselves, then of every sample; not a number: undefined.
        subjects: the patient of every unit that it rests on.
        undefined: reason that is given where the data do not define it.

    Returns:
        The value with its 95 % percentile interval; none where half of the samples or more
        do not define it, or where it rests on one patient.

    Source: as `bootstrap.estimate`.
    """
    value, drawn = float(values[0]), values[1:]
    defined = drawn[~np.isnan(drawn)]
    patients = len(set(subjects))
    if np.isnan(value):
        return Figure(None, len(subjects), patients, reason=undefined)
    if patients < 2 or len(defined) <= _LEAST_DEFINED * len(drawn):
        return Figure(value, len(subjects), patients)
    low, high = (float(end) for end in np.quantile(defined, _TAILS))
    return Figure(value, len(subjects), patients, low, high)
