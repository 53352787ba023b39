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
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int
from scipy import optimize, stats

from medclip_dcl.artifact import Artifact
from medclip_dcl.errors import ArtifactStale, ConfigError, MetricError
from medclip_dcl.evaluation import metrics, results
from medclip_dcl.evaluation.bootstrap import Samples, patient_weights, unit_weights
from medclip_dcl.evaluation.classification import class_recalls
from medclip_dcl.evaluation.grounding import grounding_columns
from medclip_dcl.evaluation.operating_point import decision_metrics, mean_decision_metrics
from medclip_dcl.evaluation.retrieval import GALLERY_LENGTHS, table1_retrieval
from medclip_dcl.tables import TableFormat, read_table

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
# Doubles counted as wrong, and the margins of AUC and probes at a threshold.
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
    *,
    is_model: bool = False,
) -> dict[str, Difference]:
    """Compare two configs from one call of `measure_sides`, figure by figure.

    `figures` are those that are compared, and corrected for their number; empty: all but those
    that read the same cases again: ranks that count a query's doubles as wrong, CNR without its
    sign, and decisions at a threshold. With one run on a side there is no p and no interval, unless
    that run `is_model`: a given model, of which no other seed would make another.

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
        if min(len(a[name]), len(b[name])) < 2 and not is_model:
            estimate = replace(estimate, low=None, high=None, p=None, reason=_TWO_MODELS)
        found[name] = Difference(_mean_of_runs(a[name]), _mean_of_runs(b[name]), estimate)
    known = {name: item.estimate.p for name, item in found.items() if item.estimate.p is not None}
    for name, p in zip(known, holm(list(known.values())), strict=True):
        least = smallest_detectable(found[name].estimate, LEVEL / len(known))
        found[name] = replace(found[name], corrected_p=p, is_different=p < LEVEL, detectable=least)
    return found


def smallest_detectable(estimate: Estimate, level: float = LEVEL) -> float | None:
    """Give the smallest true difference that a test at this level finds with a chance of `POWER`.

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


@dataclass(frozen=True)
class SampleResults:
    """The cases of one run: its tables, and everybody in them, sorted."""

    tables: Mapping[TableFormat, pa.Table]
    patients: tuple[str, ...]

    def column(self, form: TableFormat, name: str) -> np.ndarray:
        """Give a column of one of the tables: numbers as floats, NaN where null."""
        column = self.tables[form].column(name)
        if pa.types.is_string(column.type):
            return np.array(column.to_pylist(), dtype=object)
        values: np.ndarray = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return values


def read_sample_results(artifact: Artifact) -> SampleResults:
    """Read the cases of a run from its results."""
    tables = {form: read_table(artifact.path, form) for form in _TABLES}
    patients = {name for table in tables.values() for name in table["subject_id"].to_pylist()}
    return SampleResults(tables, tuple(sorted(patients)))


def check_same_samples(runs: Sequence[SampleResults]) -> None:
    """Raise ArtifactStale where a run has other cases than the first, or another truth of one."""
    for form, (case, _) in _TABLES.items():
        first = runs[0].tables[form].select(case)
        for number, other in enumerate(runs[1:], start=2):
            if not first.equals(other.tables[form].select(case)):
                raise ArtifactStale(
                    f"{form.file} of run {number} has other cases than that of run 1; evaluate "
                    "all runs on the same images with the same `evaluate` settings and seed"
                )


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


def measure(cases: SampleResults, weights: Int[np.ndarray, "S patients"]) -> dict[str, Samples]:
    """Measure a run in every resample of its patients: `question.figure` -> values.

    A figure whose question was not put is left out.
    """
    found: dict[str, Samples] = {}
    for form, (_, figures) in _TABLES.items():
        if cases.tables[form].num_rows:
            owners = cases.column(form, "subject_id").tolist()
            found |= dict(figures(cases, unit_weights(weights, cases.patients, owners)))
    return found


_Named = Iterator[tuple[str, np.ndarray]]


def _zero_shot(cases: SampleResults, weights: np.ndarray) -> _Named:
    findings = cases.column(results.SCORES, "finding")
    truth, margin = (cases.column(results.SCORES, name) for name in ("truth", "margin"))
    found = _findings(findings, margin, truth, weights, cases.column(results.SCORES, "offset"))
    for name in [name for name in found if name != "mean_accuracy"]:
        yield f"zero_shot.{name}", found[name]
    yield from _decisions("decisions", cases, results.SCORES, np.ones(len(truth), bool), weights)


def _probes(cases: SampleResults, weights: np.ndarray) -> _Named:
    form = results.PROBES
    truth, margin, fraction, draw = (
        cases.column(form, name) for name in ("truth", "margin", "fraction", "draw")
    )
    names = cases.column(form, "finding")
    groups = np.array([f"{finding} {step}" for finding, step in zip(names, draw, strict=True)])
    for share in np.unique(fraction):
        mine = fraction == share
        found = _findings(groups[mine], margin[mine], truth[mine], weights[:, mine])
        if found:
            yield f"probe.{share:g}.mean_auc", found["mean_auc"]
    first = (fraction == fraction.max()) & (draw == 0)
    yield from _decisions("probe_decisions", cases, form, first, weights)


def _decisions(
    question: str, cases: SampleResults, form: TableFormat, chosen: np.ndarray, weights: np.ndarray
) -> _Named:
    names = cases.column(form, "finding")
    truth, margin, threshold = (
        cases.column(form, name) for name in ("truth", "margin", "threshold")
    )
    found = mean_decision_metrics(
        decision_metrics(
            margin[own],
            truth[own] == 1,
            None if np.isnan(threshold[own][0]) else float(threshold[own][0]),
            weights[:, own],
        )
        for name in dict.fromkeys(names[chosen].tolist())
        for own in (chosen & (names == name) & ~np.isnan(truth),)
        if len(set(truth[own])) == 2
    )
    for name, values in found.items():
        yield f"{question}.{name}", values


def _findings(
    groups: np.ndarray,
    margin: np.ndarray,
    truth: np.ndarray,
    weights: np.ndarray,
    offset: np.ndarray | None = None,
) -> dict[str, Samples]:
    # Averages over the groups that have both classes.
    owns = [(groups == group) & ~np.isnan(truth) for group in dict.fromkeys(groups.tolist())]
    levels = None if offset is None or np.isnan(offset).any() else offset
    return metrics.mean_over_findings(
        metrics.classification_metrics(
            margin[own],
            truth[own] == 1,
            weights[:, own],
            None if levels is None else float(levels[own][0]),
        )
        for own in owns
        if len(set(truth[own])) == 2
    )


def _classes(cases: SampleResults, weights: np.ndarray) -> _Named:
    shown, answer = (cases.column(results.CLASSES, name) for name in ("finding", "answer"))
    right = np.array(shown == answer, dtype=float)
    recalls = class_recalls(right, shown, [*dict.fromkeys(shown.tolist())], weights)
    yield "classes.mean_recall", metrics.mean_of([*recalls.values()])


def _grounding(cases: SampleResults, weights: np.ndarray) -> _Named:
    columns = grounding_columns(cases.tables[results.GROUNDINGS].to_pylist())
    for name in ("cnr", "cnr_signed", "miou", "pointing"):
        yield f"grounding.{name}", metrics.mean(columns[name], weights)


def _gallery(cases: SampleResults, weights: np.ndarray) -> _Named:
    rank = cases.column(results.BOX_ANSWERS, "gallery_rank")
    known = ~np.isnan(rank)
    if known.any():
        for length in GALLERY_LENGTHS:
            hits = metrics.mean((rank[known] <= length).astype(float), weights[:, known])
            yield f"gallery.recall_at_{length}", hits


def _ranks(cases: SampleResults, weights: np.ndarray) -> _Named:
    columns = ("question", "direction", "rank", "own_rank", "expected_rank")
    question, direction, *ranks = (cases.column(results.RANKS, name) for name in columns)
    for name in dict.fromkeys(question.tolist()):
        ways = {
            way: (question == name) & (direction == way)
            for way in dict.fromkeys(direction[question == name].tolist())
        }
        found = table1_retrieval(
            {way: ([each[own] for each in ranks], weights[:, own]) for way, own in ways.items()}
        )
        for figure, values in found.items():
            yield f"{name}.{figure}", values


_TABLES: dict[TableFormat, tuple[list[str], Callable[[SampleResults, np.ndarray], _Named]]] = {
    results.SCORES: (["image_id", "finding", "truth"], _zero_shot),
    results.CLASSES: (["image_id", "finding"], _classes),
    results.GROUNDINGS: (["image_id", "phrase_key"], _grounding),
    results.BOX_ANSWERS: (["image_id", "phrase_key", "gallery_true"], _gallery),
    results.RANKS: (["question", "direction", "image_id"], _ranks),
    results.PROBES: (["image_id", "finding", "fraction", "draw", "truth"], _probes),
}
"""The columns that say which case a row is, equal in all runs that are compared; and the figures
of a table, given the weights of its rows."""
