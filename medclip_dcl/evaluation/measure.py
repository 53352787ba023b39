"""Measures of what an evaluation kept case by case: every figure, in any draw of patients.

The rows of its tables are enough to measure a model again without the model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Int

from medclip_dcl.artifact import Artifact
from medclip_dcl.errors import ArtifactStale
from medclip_dcl.evaluation import metrics, results
from medclip_dcl.evaluation.bootstrap import Samples, unit_weights
from medclip_dcl.evaluation.classification import class_recalls
from medclip_dcl.evaluation.grounding import grounding_columns
from medclip_dcl.evaluation.operating_point import decision_metrics, mean_decision_metrics
from medclip_dcl.evaluation.retrieval import GALLERY_LENGTHS, table1_retrieval
from medclip_dcl.tables import TableFormat, read_table


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
