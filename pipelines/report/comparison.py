"""Two configs, several runs each, on the same patients: which figures differ?

What `evaluate` keeps case by case is enough to measure a run on any draw of patients, without
its model. A figure varies because other patients might have been examined, and because another
seed would have given another model. Patients are drawn once for all runs (the comparison is
paired), runs of each side by themselves. Of n runs n - 1 are drawn: the mean of n drawn with
replacement would vary by (n - 1) / n of what it should (Rao and Wu 1988), a third too little
with three runs.

A spread that is estimated from few runs is itself uncertain, so the difference over its
standard error is compared with Student's t, with the degrees of freedom of Welch and
Satterthwaite, not with the percentiles of the samples. One run says nothing of the spread, so
two configs are not judged by one run of either; two runs give a p, three an interval.

A sweep is measured in the same way, each point against its baseline, as the tree of `sweep.json`:
`figures` (title -> result), `axes` with their values, and `points` with their settings `at`,
`seeds`, `figures`, what was `tuned`, and the differences `against` the `baseline`.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import optimize, stats

from medclip_dcl.core.errors import ArtifactStale, ConfigError, MetricError
from medclip_dcl.evaluation.bootstrap import patient_weights
from medclip_dcl.evaluation.measure import SampleResults, check_same_samples, measure

LEVEL = 0.05
"""Chance of calling a difference where there is none, over all figures together."""

POWER = 0.8
"""Chance of seeing a difference of `Difference.detectable`."""

LEAST_RUNS = 3
"""Runs below which a spread over runs gives no interval: of two runs it is wide or narrow by
chance alone."""

Runs = Float[np.ndarray, "_ samples_and_one"]
"""A figure of each run, on the patients as they are and in every resample of them."""

Side = Mapping[str, Runs]
"""Figure -> its values in every run of a config, on every draw of patients."""

_TWO_MODELS = "one run on a side: two models, not two configs"
# Duplicates counted as wrong, and the margins of AUC and probes at a threshold.
_READ_AGAIN = (".own_", ".expected_", "decisions.")
_UNSIGNED = "grounding.cnr"  # the signed one without its sign, half noise
_LOWER_IS_BETTER = "median_rank"


@dataclass(frozen=True)
class Estimate:
    """A figure of one side, or a difference of two, over patients and runs."""

    value: float | None
    """Mean over the runs; None where a run has no such figure."""
    error: float | None = None
    """Its standard error."""
    degrees: float | None = None
    """Degrees of freedom of the error; None: it is taken as known."""
    low: float | None = None
    high: float | None = None
    p: float | None = None
    """Chance of a value as far from 0 were the truth 0."""
    reason: str = ""
    """Why something is None, or what was not resampled; else empty."""


@dataclass(frozen=True)
class Difference:
    """One figure, compared: the means of both sides' runs, and a - b."""

    a: float | None
    b: float | None
    estimate: Estimate
    corrected_p: float | None = None
    """p after Holm's correction for all figures; None: not known."""
    is_different: bool = False
    detectable: float | None = None
    """Smallest true difference, of either sign, that such runs would call different with a chance
    of `POWER`, as the least p of all figures; None: not known."""


def estimate_side(runs: Runs, generator: np.random.Generator) -> Estimate:
    """Estimate what a config would give with other seeds and on other patients.

    With one run the interval is over patients alone, with two there is none; `reason` says so.
    """
    return _estimate([(runs, 1.0)], generator)


def compare_sides(
    a: Side,
    b: Side,
    generator: np.random.Generator,
    figures: Collection[str] = (),
) -> dict[str, Difference]:
    """Compare two configs from one call of `measure_sides`, figure by figure.

    `figures` are those that are compared, and corrected for their number; empty: all but those
    that read the same cases again: ranks that count a query's duplicates as wrong, CNR without its
    sign, and decisions at a threshold. With one run on a side there is no p and no interval.

    Raises:
        ConfigError: a figure is asked for that one of the configs lacks.
        MetricError: the sides were resampled differently.
    """
    both = [name for name in a if name in b]
    unknown = sorted(set(figures) - set(both))
    if unknown:
        raise ConfigError(f"the runs have no figures {unknown}; choose among {both}")
    found: dict[str, Difference] = {}
    for name in both:
        read_again = name == _UNSIGNED or any(mark in name for mark in _READ_AGAIN)
        if name not in figures if figures else read_again:
            continue
        if a[name].shape[1] != b[name].shape[1]:
            raise MetricError(
                f"{a[name].shape[1]} and {b[name].shape[1]} samples of {name}; measure both sides "
                "in one call"
            )
        estimate = _estimate([(a[name], 1.0), (b[name], -1.0)], generator)
        if min(len(a[name]), len(b[name])) < 2:
            estimate = replace(estimate, low=None, high=None, p=None, reason=_TWO_MODELS)
        found[name] = Difference(_mean_of_runs(a[name]), _mean_of_runs(b[name]), estimate)
    known = {name: item.estimate.p for name, item in found.items() if item.estimate.p is not None}
    for name, p in zip(known, holm(list(known.values())), strict=True):
        least = smallest_detectable(found[name].estimate, LEVEL / len(known))
        found[name] = replace(found[name], corrected_p=p, is_different=p < LEVEL, detectable=least)
    return found


def smallest_detectable(estimate: Estimate, level: float = LEVEL) -> float | None:
    """Return the smallest true difference that a test at this level finds with a chance of `POWER`.

    The error and its degrees of freedom are taken as estimated: of few runs it is a rough number.
    None where there is no p.

    Source: the power of Student's t (its noncentral distribution), such as Cohen 1988, chapter 2.
    """
    if estimate.p is None or estimate.error is None:
        return None
    degrees = math.inf if estimate.degrees is None else estimate.degrees
    bound = float(stats.t.ppf(1 - level / 2, degrees))

    def missing(shift: float) -> float:  # the other tail adds nothing at a power of .8
        if math.isinf(degrees):
            return float(stats.norm.sf(bound - shift)) - POWER
        return float(stats.nct.sf(bound, degrees, shift)) - POWER

    return estimate.error * float(optimize.brentq(missing, 0.0, 10 * bound + 10))


def describe_difference(name: str, difference: Difference) -> str:
    """Say `A is better`, `B is better`, `no difference shown` or `not known` of a figure.

    With the third stands the smallest difference that would have been seen.
    """
    value = difference.estimate.value
    if value is None or difference.corrected_p is None:
        return "not known"
    if not difference.is_different:
        return f"no difference shown{power_text(difference.detectable)}"
    lower_wins = name.endswith(_LOWER_IS_BETTER)
    return "A is better" if (value > 0) != lower_wins else "B is better"


def power_text(detectable: float | None) -> str:
    """Say what would have been seen, to stand behind `no difference shown`; empty: not known."""
    return "" if detectable is None else f" ({POWER:.0%} power at {detectable:.2g})"


def holm(p: Sequence[float]) -> list[float]:
    """Correct p-values, dependent in any way, for their number.

    Calling those below a level different errs with at most that chance over all of them.

    Source: Holm 1979.
    """
    order = np.argsort(p, kind="stable")
    corrected = np.empty(len(p))
    least = 0.0
    # The least p counts for all, the next for one fewer; none falls below the one before it.
    for step, index in enumerate(order):
        least = max(least, min(1.0, p[index] * (len(p) - step)))
        corrected[index] = least
    return [float(value) for value in corrected]


def _mean_of_runs(runs: np.ndarray) -> float | None:
    return None if np.isnan(runs[:, 0]).any() or not len(runs) else float(runs[:, 0].mean())


def _estimate(
    sides: Sequence[tuple[np.ndarray, float]], generator: np.random.Generator
) -> Estimate:
    # A signed sum of sides' means.
    means = [_mean_of_runs(runs) for runs, _ in sides]
    if any(mean is None for mean in means):
        return Estimate(None, reason="a run has no such figure")
    value = sum(sign * float(runs[:, 0].mean()) for runs, sign in sides)
    defined = ~np.any([np.isnan(runs).any(axis=0) for runs, _ in sides], axis=0)
    samples = [runs[:, defined] for runs, _ in sides]
    if defined[1:].sum() <= len(defined[1:]) / 2:
        return Estimate(value, reason="undefined in half of the resamples of patients or more")
    signs = np.array([sign for _, sign in sides])
    # `fixed` varies by patients alone, which the degrees of freedom need; `drawn` by runs as well.
    fixed = signs @ np.stack([runs.mean(axis=0) for runs in samples])
    drawn = signs @ np.stack([_draw_runs(runs, generator) for runs in samples])
    error = float(np.std(drawn[1:], ddof=1))
    degrees = _degrees(float(np.var(fixed[1:], ddof=1)), [runs[:, 0] for runs, _ in sides])
    counts = [len(runs) for runs, _ in sides]
    reason = "one run: patients alone were resampled" if 1 in counts else ""
    shown = degrees if math.isfinite(degrees) else None
    p = (
        (1.0 if value == 0 else 0.0)
        if error == 0
        else float(2 * stats.t.sf(abs(value) / error, degrees))
    )
    few = [count for count in counts if 1 < count < LEAST_RUNS]
    if few:
        reason = f"n = {min(few)}: an interval over seeds needs {LEAST_RUNS}"
        return Estimate(value, error, shown, p=p, reason=reason)
    reach = float(stats.t.ppf(1 - LEVEL / 2, degrees)) * error
    return Estimate(value, error, shown, value - reach, value + reach, p, reason)


def _draw_runs(runs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    # Mean of n - 1 runs drawn from n, again in every sample.
    count, samples = runs.shape
    if count > 1:
        chosen = generator.integers(count, size=(count - 1, samples))
        runs = runs[chosen, np.arange(samples)]
    drawn: np.ndarray = runs.mean(axis=0)
    return drawn


def _degrees(patients: float, sides: Sequence[np.ndarray]) -> float:
    # Welch and Satterthwaite's degrees of freedom; the patients' variance is taken as known.
    # Variance of each side's mean, with its degrees of freedom; one run adds nothing to either.
    shares = [
        (float(runs.var(ddof=1)) / len(runs), len(runs) - 1) for runs in sides if len(runs) > 1
    ]
    uncertain = sum(share**2 / freedom for share, freedom in shares)
    if uncertain == 0:
        return math.inf
    return float((patients + sum(share for share, _ in shares)) ** 2 / uncertain)


def measure_sides(
    sides: Sequence[Sequence[SampleResults]], samples: int, generator: np.random.Generator
) -> list[Side]:
    """Measure the runs of several configs on the same draws of patients.

    A config has the figures that all of its runs have, at least one run.

    Raises:
        ArtifactStale: the runs were not asked the same cases, or none.
    """
    runs = [run for side in sides for run in side]
    check_same_samples(runs)
    if not runs[0].patients:
        raise ArtifactStale("the runs have no cases; evaluate them on a split with images")
    weights = patient_weights(len(runs[0].patients), samples, generator)
    found: list[Side] = []
    for side in sides:
        each = [measure(run, weights) for run in side]
        names = [name for name in each[0] if all(name in other for other in each)]
        found.append({name: np.stack([run[name] for run in each]) for name in names})
    return found


class PointResults(NamedTuple):
    """The results of a point's runs, and what else its part of the tree has."""

    facts: Mapping[str, Any]
    runs: Sequence[SampleResults]


def measure_points(
    points: Sequence[PointResults],
    figures: Mapping[str, str],
    compared: Sequence[str],
    baseline: str,
    samples: int,
) -> dict[str, Any]:
    """Measure points on the same draws of patients, and compare them with one; a part of the tree.

    Figures that no run has are left out.

    Raises:
        ConfigError: there is none of the figures.
    """
    sides = measure_sides([point.runs for point in points], samples, np.random.default_rng(0))
    there = {figure for side in sides for figure in side}
    listed = {title: figure for title, figure in figures.items() if figure in there}
    if not listed:
        raise ConfigError(
            f"the runs have none of the figures {sorted(figures.values())}; use of {sorted(there)}"
        )
    wanted = [figure for figure in compared or figures.values() if figure in there]
    base = next((k for k, item in enumerate(points) if item.facts["name"] == baseline), 0)
    measured = []
    for number, (point, side) in enumerate(zip(points, sides, strict=True)):
        generator = np.random.default_rng(0)
        estimates = {
            title: {"n": len(point.runs), **asdict(estimate_side(side[name], generator))}
            for title, name in listed.items()
            if name in side
        }
        against = {} if number == base else _against(side, sides[base], wanted)
        measured.append({**point.facts, "figures": estimates, "against": against})
    axes = {
        axis: [*dict.fromkeys(point.facts["at"][axis] for point in points)]
        for axis in points[0].facts["at"]
    }
    facts = {"patients": len(points[0].runs[0].patients), "samples": samples}
    facts["baseline"] = points[base].facts["name"]
    return {**facts, "figures": listed, "axes": axes, "points": measured}


def _against(side: Side, baseline: Side, figures: Sequence[str]) -> dict[str, Any]:
    both = [name for name in figures if name in side.keys() & baseline.keys()]
    generator = np.random.default_rng(0)
    differences = compare_sides(side, baseline, generator, both) if both else {}
    return {
        name: {**asdict(item), "verdict": describe_difference(name, item)}
        for name, item in differences.items()
    }


def sweep_text(tree: Mapping[str, Any]) -> str:
    """Lay out a line a point for a terminal, then its difference from the baseline."""
    points, wide = tree["points"], 2 + max(len(point["title"]) for point in tree["points"])
    lines = [
        f"{tree['patients']} patients, {tree['samples']} draws; mean over seeds +- half its 95 % "
        f"interval over patients and seeds: of one seed over patients alone, of fewer than "
        f"{LEAST_RUNS} none. In brackets what a paper reports.",
        f"{'':4}{'point':{wide}}" + "".join(f"{title:>20}" for title in tree["figures"]),
    ]
    for number, point in enumerate(points):
        cells = "".join(
            f"{_cell(point['figures'].get(title), point['published'].get(title)):>20}"
            for title in tree["figures"]
        )
        facts = f"seeds {len(point['seeds'])}, {point['seconds']:.0f} s"
        lines.append(f"{number:<4}{point['title']:{wide}}{cells}   {facts}")
    for point in points:
        if tuned := point["tuned"]:
            scores = ", ".join(f"{name} {score:.3f}" for name, score in tuned["scores"].items())
            lines.append(
                f"{point['title']}: {tuned['value']} is best by {tree['judge']} ({scores})"
            )
    if len(points) > 1:
        lines += ["", f"against {tree['baseline']}, p corrected for the figures of a point:"]
    titles = {name: title for title, name in tree["figures"].items()}
    for point in points:
        verdicts = [
            f"{titles.get(name, name)} {item['estimate']['value']:+.3g} {item['verdict']}"
            for name, item in point["against"].items()
            if item["estimate"]["value"] is not None
        ]
        if verdicts:
            lines.append(f"{point['title']:{wide}}{'; '.join(verdicts)}")
    return "\n".join(lines)


def _cell(figure: Mapping[str, Any] | None, published: float | None) -> str:
    if figure is None or figure["value"] is None:
        return "-"
    digits = 1 if abs(figure["value"]) >= 10 else 3
    half = "" if figure["high"] is None else f"+-{figure['high'] - figure['value']:.{digits}f}"
    few = f" n={figure['n']}" if figure["n"] < LEAST_RUNS else ""
    paper = "" if published is None else f" ({published:.{2 if published < 10 else 0}f})"
    return f"{figure['value']:.{digits}f}{half}{few}{paper}"
