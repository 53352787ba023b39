"""Two recipes, several runs each, on the same patients: which figures differ?

A figure varies because other patients might have been examined, and because another seed
would have given another model. Patients are drawn once for all runs (the comparison is
paired), runs of each side by themselves. Of n runs n - 1 are drawn: the mean of n drawn
with replacement would vary by (n - 1) / n of what it should (Rao and Wu 1988), a third too
little with three runs.

A spread that is estimated from few runs is itself uncertain, so the difference over its
standard error is held against Student's t, with the degrees of freedom of Welch and
Satterthwaite, not against the percentiles of the samples.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import stats

from medclip_dcl.errors import MetricError

LEVEL = 0.05
"""Chance of calling a difference where there is none, over all figures together."""

Runs = Float[np.ndarray, "_ samples_and_one"]
"""A figure of each run, on the patients as they are and in every resample of them."""


@dataclass(frozen=True)
class Estimate:
    """A figure of one side, or a difference of two, over patients and runs.

    Attributes:
        value: mean over the runs; None where a run has no such figure.
        error: its standard error; None where it cannot be told.
        degrees: degrees of freedom of the error; None: it is taken as known.
        low: lower end of the 95 % interval.
        high: upper end of the 95 % interval.
        p: chance of a value as far from 0 were the truth 0.
        reason: why something is None, else empty.
    """

    value: float | None
    error: float | None = None
    degrees: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Difference:
    """One figure, compared.

    Attributes:
        a: mean of the first side's runs.
        b: mean of the second side's.
        estimate: a - b.
        corrected_p: p after Holm's correction for all figures; None: not told.
        is_different: whether it is below `LEVEL`.
    """

    a: float | None
    b: float | None
    estimate: Estimate
    corrected_p: float | None = None
    is_different: bool = False


def estimate_side(runs: Runs, generator: np.random.Generator) -> Estimate:
    """Estimate what a recipe would give with other seeds and on other patients.

    Args:
        runs: the figure of each run; not a number where it is undefined.
        generator: source of the draws of runs.

    Returns:
        The mean over runs with its interval. With one run the interval is over patients
        alone; `reason` says so.
    """
    return _estimate([(runs, 1.0)], generator)


def compare_sides(
    a: Mapping[str, Runs], b: Mapping[str, Runs], generator: np.random.Generator
) -> dict[str, Difference]:
    """Compare two recipes in every figure that both have.

    Args:
        a: figure -> its values in the runs of one recipe.
        b: the same of the other; equal columns are equal draws of patients.
        generator: source of the draws of runs.

    Returns:
        Figure -> difference a - b, in the order of `a`. A side of one run cannot tell
        runs apart: the difference is then that of two models, and `reason` says so.

    Raises:
        MetricError: the sides were not resampled alike.
    """
    found: dict[str, Difference] = {}
    for name in a:
        if name not in b:
            continue
        if a[name].shape[1] != b[name].shape[1]:
            raise MetricError(
                f"{a[name].shape[1]} and {b[name].shape[1]} samples of {name}; resample both alike"
            )
        estimate = _estimate([(a[name], 1.0), (b[name], -1.0)], generator)
        found[name] = Difference(_mean(a[name]), _mean(b[name]), estimate)
    told = {name: item.estimate.p for name, item in found.items() if item.estimate.p is not None}
    corrected = dict(zip(told, holm(list(told.values())), strict=True))
    return {
        name: Difference(
            item.a, item.b, item.estimate, corrected.get(name), corrected.get(name, 1.0) < LEVEL
        )
        for name, item in found.items()
    }


def holm(p: Sequence[float]) -> list[float]:
    """Correct p-values for their number.

    Args:
        p: p-values, dependent in any way.

    Returns:
        Corrected ones in the same order: calling those below a level different errs
        with at most that chance over all of them.

    Source: Holm 1979.
    """
    order = np.argsort(p, kind="stable")
    corrected = np.empty(len(p))
    least = 0.0
    for step, place in enumerate(order):
        least = max(least, min(1.0, p[place] * (len(p) - step)))
        corrected[place] = least
    return [float(value) for value in corrected]


def _mean(runs: np.ndarray) -> float | None:
    return None if np.isnan(runs[:, 0]).any() or not len(runs) else float(runs[:, 0].mean())


def _estimate(
    sides: Sequence[tuple[np.ndarray, float]], generator: np.random.Generator
) -> Estimate:
    """Estimate a signed sum of sides' means."""
    means = [_mean(runs) for runs, _ in sides]
    if any(mean is None for mean in means):
        return Estimate(None, reason="a run has no such figure")
    value = sum(sign * float(runs[:, 0].mean()) for runs, sign in sides)
    defined = ~np.any([np.isnan(runs).any(axis=0) for runs, _ in sides], axis=0)
    samples = [runs[:, defined] for runs, _ in sides]
    if defined[1:].sum() <= len(defined[1:]) / 2:
        return Estimate(value, reason="undefined in half of the resamples of patients or more")
    signs = np.array([sign for _, sign in sides])
    fixed = signs @ np.stack([runs.mean(axis=0) for runs in samples])
    drawn = signs @ np.stack([_draw_runs(runs, generator) for runs in samples])
    error = float(np.std(drawn[1:], ddof=1))
    degrees = _degrees(float(np.var(fixed[1:], ddof=1)), [runs[:, 0] for runs, _ in sides])
    alone = any(len(runs) < 2 for runs, _ in sides)
    reason = "one run: patients alone were resampled" if alone else ""
    shown = degrees if math.isfinite(degrees) else None
    if error == 0:
        p = 1.0 if value == 0 else 0.0
        return Estimate(value, error, shown, value, value, p, reason)
    reach = float(stats.t.ppf(1 - LEVEL / 2, degrees)) * error
    p = float(2 * stats.t.sf(abs(value) / error, degrees))
    return Estimate(value, error, shown, value - reach, value + reach, p, reason)


def _draw_runs(runs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Mean of n - 1 runs drawn from n, anew in every sample."""
    count, samples = runs.shape
    if count > 1:
        chosen = generator.integers(count, size=(count - 1, samples))
        runs = runs[chosen, np.arange(samples)]
    drawn: np.ndarray = runs.mean(axis=0)
    return drawn


def _degrees(patients: float, sides: Sequence[np.ndarray]) -> float:
    """Welch and Satterthwaite's degrees of freedom; the patients' variance is taken as known."""
    shares = [
        (float(runs.var(ddof=1)) / len(runs), len(runs) - 1) for runs in sides if len(runs) > 1
    ]
    uncertain = sum(share**2 / freedom for share, freedom in shares)
    if uncertain == 0:
        return math.inf
    return float((patients + sum(share for share, _ in shares)) ** 2 / uncertain)
