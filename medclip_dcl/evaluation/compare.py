"""Two recipes, several runs each, on the same patients: which figures differ?

A figure varies because other patients might have been examined, and because another seed
would have given another model. Patients are drawn once for all runs (the comparison is
paired), runs of each side by themselves. Of n runs n - 1 are drawn: the mean of n drawn
with replacement would vary by (n - 1) / n of what it should (Rao and Wu 1988), a third too
little with three runs.

A spread that is estimated from few runs is itself uncertain, so the difference over its
standard error is held against Student's t, with the degrees of freedom of Welch and
Satterthwaite, not against the percentiles of the samples.

The cases behind an evaluation's figures, and those figures in every resample of patients.

What `evaluate` keeps case by case is enough to measure a run anew on any draw of patients,
without its model. Runs that were asked the same cases can be compared patient by patient.

Two recipes, some runs each, asked the same cases: every figure, and a verdict on it.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int
from scipy import stats

from medclip_dcl.artifact import Artifact
from medclip_dcl.errors import ArtifactStale, ConfigError, MetricError
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.bootstrap import (
    patient_weights,
    resampled_auc,
    resampled_balanced_accuracy,
    resampled_mean,
    resampled_median,
    unit_weights,
)
from medclip_dcl.evaluation.summary import PAPER_K
from medclip_dcl.tables import TableFormat, read_table

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
        found[name] = Difference(_mean_of_runs(a[name]), _mean_of_runs(b[name]), estimate)
    reported = {
        name: item.estimate.p for name, item in found.items() if item.estimate.p is not None
    }
    corrected = dict(zip(reported, holm(list(reported.values())), strict=True))
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
    for step, index in enumerate(order):
        least = max(least, min(1.0, p[index] * (len(p) - step)))
        corrected[index] = least
    return [float(value) for value in corrected]


def _mean_of_runs(runs: np.ndarray) -> float | None:
    return None if np.isnan(runs[:, 0]).any() or not len(runs) else float(runs[:, 0].mean())


def _estimate(
    sides: Sequence[tuple[np.ndarray, float]], generator: np.random.Generator
) -> Estimate:
    """Estimate a signed sum of sides' means."""
    means = [_mean_of_runs(runs) for runs, _ in sides]
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


FORMS = (
    results.SCORES,
    results.CLASSES,
    results.GROUNDINGS,
    results.BOX_ANSWERS,
    results.RANKS,
    results.PROBES,
)
_CASE = {
    results.SCORES.file: ("image_id", "finding", "truth"),
    results.CLASSES.file: ("image_id", "finding"),
    results.GROUNDINGS.file: ("image_id", "phrase_key"),
    results.BOX_ANSWERS.file: ("image_id", "phrase_key", "gallery_true"),
    results.RANKS.file: ("question", "direction", "image_id"),
    results.PROBES.file: ("image_id", "finding", "fraction", "draw", "truth"),
}
"""Columns that say which case a row is; equal in all runs that are compared."""

LOWER_IS_BETTER = ("median_rank", "own_median_rank")
"""Last parts of the names of figures of which less is better."""

Samples = Float[np.ndarray, " S"]


@dataclass(frozen=True)
class SampleResults:
    """The cases of one run.

    Attributes:
        tables: file -> table.
        patients: everybody in them, sorted.
    """

    tables: Mapping[str, pa.Table]
    patients: tuple[str, ...]

    def column(self, form: TableFormat, name: str) -> np.ndarray:
        """Give a column of one of the tables.

        Args:
            form: the table.
            name: the column.

        Returns:
            Its values; numbers as floats, not a number where null.
        """
        column = self.tables[form.file].column(name)
        if pa.types.is_string(column.type):
            return np.array(column.to_pylist(), dtype=object)
        values: np.ndarray = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return values


def read_sample_results(artifact: Artifact) -> SampleResults:
    """Read the cases of a run.

    Args:
        artifact: its results.

    Returns:
        The cases.
    """
    tables = {form.file: read_table(artifact.path, form) for form in FORMS}
    patients = {name for table in tables.values() for name in table["subject_id"].to_pylist()}
    return SampleResults(tables, tuple(sorted(patients)))


def check_same_samples(runs: Sequence[SampleResults]) -> None:
    """Refuse runs that were not asked the same.

    Args:
        runs: two or more.

    Raises:
        ArtifactStale: a run has other cases, or another truth of one.
    """
    for form in FORMS:
        first = runs[0].tables[form.file].select(_CASE[form.file])
        for number, other in enumerate(runs[1:], start=2):
            if not first.equals(other.tables[form.file].select(_CASE[form.file])):
                raise ArtifactStale(
                    f"{form.file} of run {number} has other cases than that of run 1; evaluate "
                    "all runs on the same images with the same `evaluate` settings and seed"
                )


def measure(cases: SampleResults, weights: Int[np.ndarray, "S patients"]) -> dict[str, Samples]:
    """Measure a run on the patients as they are and in every resample of them.

    Args:
        cases: of the run.
        weights: of `cases.patients`, from `resampled.patient_weights`.

    Returns:
        Question and figure joined by a full stop -> its value in every sample, not a number
        where it is undefined. A figure whose question was not put is left out.
    """
    found: dict[str, Samples] = {}
    for figures in (_zero_shot, _classes, _grounding, _gallery, _ranks, _probes):
        found |= dict(figures(cases, weights))
    return found


def _weights(cases: SampleResults, form: TableFormat, weights: np.ndarray) -> np.ndarray:
    return unit_weights(weights, cases.patients, cases.column(form, "subject_id").tolist())


def _zero_shot(cases: SampleResults, weights: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    findings = cases.column(results.SCORES, "finding")
    truth, margin = (cases.column(results.SCORES, name) for name in ("truth", "margin"))
    each = _weights(cases, results.SCORES, weights)
    yield from _two_classes("zero_shot", findings, margin, truth, each)


def _probes(cases: SampleResults, weights: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    form = results.PROBES
    truth, margin, fraction, draw = (
        cases.column(form, name) for name in ("truth", "margin", "fraction", "draw")
    )
    each = _weights(cases, form, weights)
    names = cases.column(form, "finding")
    groups = np.array([f"{finding} {step}" for finding, step in zip(names, draw, strict=True)])
    for share in np.unique(fraction):
        mine = fraction == share
        parts = (groups[mine], margin[mine], truth[mine], each[:, mine])
        for name, values in _two_classes(f"probe.{share:g}", *parts):
            if name.endswith("auc"):
                yield name, values


def _two_classes(
    question: str, groups: np.ndarray, margin: np.ndarray, truth: np.ndarray, each: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Mean over groups that have both classes; one that loses a class sits a sample out."""
    areas, rights = [], []
    for group in dict.fromkeys(groups.tolist()):
        mine = (groups == group) & ~np.isnan(truth)
        positive = truth[mine] == 1
        if 0 < positive.sum() < len(positive):
            areas.append(resampled_auc(margin[mine], positive, each[:, mine]))
            rights.append(resampled_balanced_accuracy(margin[mine], positive, each[:, mine]))
    if areas:
        yield f"{question}.mean_auc", _mean(areas)
        yield f"{question}.mean_balanced_accuracy", _mean(rights)


def _classes(cases: SampleResults, weights: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    shown, answer = (cases.column(results.CLASSES, name) for name in ("finding", "answer"))
    each = _weights(cases, results.CLASSES, weights)
    right = np.array(shown == answer, dtype=float)
    recalls = [
        resampled_mean(right[shown == name], each[:, shown == name])
        for name in dict.fromkeys(shown.tolist())
    ]
    if recalls:
        yield "classes.mean_recall", _mean(recalls)


def _grounding(cases: SampleResults, weights: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    form = results.GROUNDINGS
    if not cases.tables[form.file].num_rows:
        return
    each = _weights(cases, form, weights)
    cnr, miou, pointed = (cases.column(form, name) for name in ("cnr", "miou", "pointed"))
    yield "grounding.cnr", resampled_mean(np.abs(cnr), each)
    yield "grounding.cnr_signed", resampled_mean(cnr, each)
    yield "grounding.miou", resampled_mean(miou, each)
    yield "grounding.pointing", resampled_mean(pointed, each)


def _gallery(cases: SampleResults, weights: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    rank = cases.column(results.BOX_ANSWERS, "gallery_rank")
    if not np.isnan(rank).all():
        each = _weights(cases, results.BOX_ANSWERS, weights)
        for length in (1, 5):
            hit = np.where(np.isnan(rank), np.nan, rank <= length)
            yield f"gallery.recall_at_{length}", resampled_mean(hit, each)


def _ranks(cases: SampleResults, weights: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    form = results.RANKS
    question, direction = (cases.column(form, name) for name in ("question", "direction"))
    each = _weights(cases, form, weights)
    for name in dict.fromkeys(question.tolist()):
        ways = [
            (question == name) & (direction == way)
            for way in dict.fromkeys(direction[question == name].tolist())
        ]
        for column, prefix in (("rank", ""), ("own_rank", "own_")):
            rank = cases.column(form, column)
            recalls = [
                resampled_mean((rank[way] <= length).astype(float), each[:, way])
                for way in ways
                for length in PAPER_K
            ]
            yield f"{name}.{prefix}recall", _mean(recalls)
            medians = [resampled_median(rank[way], each[:, way]) for way in ways]
            yield f"{name}.{prefix}median_rank", _mean(medians)


def _mean(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Mean over the parts that are defined, sample by sample."""
    values = np.stack(parts)
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    mean: np.ndarray = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean


Side = Mapping[str, Float[np.ndarray, "_ samples_and_one"]]
"""Figure -> its values in every run of a recipe, on every draw of patients."""

_DOUBLES = ".own_"


def measure_sides(
    sides: Sequence[Sequence[SampleResults]], samples: int, generator: np.random.Generator
) -> list[Side]:
    """Measure the runs of several recipes on the same draws of patients.

    Args:
        sides: runs of each recipe, at least one each.
        samples: draws of patients.
        generator: source of the draws.

    Returns:
        For each recipe, the figures that all of its runs have.

    Raises:
        ArtifactStale: the runs were not asked the same cases, or nobody was.
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


def compare_measured(
    a: Side, b: Side, figures: Collection[str], generator: np.random.Generator
) -> dict[str, Difference]:
    """Compare two recipes.

    Args:
        a: one recipe, from `measure_sides`.
        b: the other, from the same call.
        figures: the figures that are compared, and corrected for their number; empty: all
            but those that count a query's doubles as wrong.
        generator: source of the draws of runs.

    Returns:
        Figure -> difference a - b.

    Raises:
        ConfigError: a figure is asked for that one of the recipes lacks.
    """
    both = [name for name in a if name in b]
    unknown = sorted(set(figures) - set(both))
    if unknown:
        raise ConfigError(f"the runs have no figures {unknown}; choose among {both}")
    chosen = [name for name in both if (name in figures if figures else _DOUBLES not in name)]
    return compare_sides({name: a[name] for name in chosen}, b, generator)


def side_estimates(side: Side, generator: np.random.Generator) -> dict[str, Estimate]:
    """Estimate every figure of a recipe over patients and runs.

    Args:
        side: from `measure_sides`.
        generator: source of the draws of runs.

    Returns:
        Figure -> its estimate.
    """
    return {name: estimate_side(runs, generator) for name, runs in side.items()}


def describe_difference(name: str, difference: Difference) -> str:
    """Put a difference into words.

    Args:
        name: the figure.
        difference: a - b in it.

    Returns:
        `A is better`, `B is better`, `no difference shown` or `not expected_relation`.
    """
    value = difference.estimate.value
    if value is None or difference.corrected_p is None:
        return "not told"
    if not difference.is_different:
        return "no difference shown"
    lower_wins = name.rpartition(".")[2] in LOWER_IS_BETTER
    return "A is better" if (value > 0) != lower_wins else "B is better"
