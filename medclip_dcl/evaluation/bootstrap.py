"""Intervals over patients: images of one patient are not independent, so patients are drawn.

A bootstrap sample is a row of weights. A patient who is drawn twice weighs 2, one who is not
drawn weighs 0, and a metric of weighted units is that of the units repeated as often. Row 0
is the data as they are. Every metric is one function of its data and these weights.

Axes
    S  bootstrap samples, the data themselves first
    U  units that are measured: images, boxes or queries
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from medclip_dcl.core.errors import MetricError

Weights = Int[np.ndarray, "S U"]
Samples = Float[np.ndarray, " S"]
"""A figure in every sample; NaN where it is undefined."""

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


def draw_weights(subjects: Sequence[str], bootstrap: BootstrapOptions) -> Weights:
    """Draw the patients of some units, at least one unit."""
    patients = sorted(set(subjects))
    drawn = patient_weights(len(patients), bootstrap.samples, bootstrap.generator())
    return unit_weights(drawn, patients, subjects)


def estimate(
    measure: Callable[[Weights], Mapping[str, Samples]],
    subjects: Sequence[str],
    bootstrap: BootstrapOptions,
    undefined: str,
) -> dict[str, Figure]:
    """Measure figures with their 95 % percentile intervals over patients.

    `measure` turns weights of the units into figures by name, `subjects` are the units' patients,
    and `undefined` is the reason given where the data do not define a figure.

    Source: Efron and Tibshirani 1993, chapter 13 (percentile interval), with patients
        as what is drawn.
    """
    if subjects:
        weights = draw_weights(subjects, bootstrap)
    else:
        weights = np.ones((bootstrap.samples + 1, 0), dtype=np.int64)
    # Rows of weights are measured a block at a time: all of them may be gigabytes.
    rows = max(1, _BLOCK // max(1, len(subjects)))
    blocks = [measure(weights[start : start + rows]) for start in range(0, len(weights), rows)]
    return {
        name: summarise(np.concatenate([block[name] for block in blocks]), subjects, undefined)
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
