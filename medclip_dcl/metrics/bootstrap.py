"""Intervals by resampling patients, since films of one patient are not independent."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from medclip_dcl.errors import MetricError

_LEVEL = 0.95
_LEAST_DEFINED = 0.5  # share of resamples in which a figure must exist to have an interval


@dataclass(frozen=True)
class Figure:
    """A measured number with what it rests on.

    Attributes:
        value: the number; None where it is undefined, and `reason` says why.
        n: films, boxes or queries that it rests on.
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
