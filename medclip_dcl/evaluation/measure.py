"""Measures of what an evaluation kept case by case: every figure, in any draw of patients.

The rows of its tables are enough to measure a model again without the model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Int

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.errors import ArtifactStale
from medclip_dcl.core.tables import TableFormat, read_table
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.classification import (
    UNKNOWN,
    Matrix,
    Truth,
    mean_over_findings,
    ranking,
)
from medclip_dcl.evaluation.decisions import decision_metrics
from medclip_dcl.evaluation.grounding import measure_grounding
from medclip_dcl.evaluation.metrics import Samples, Weights, unit_weights
from medclip_dcl.evaluation.retrieval import measure_ranks


@dataclass(frozen=True)
class SampleResults:
    """The cases of one run: its tables, and everybody in them, sorted."""

    tables: Mapping[TableFormat, pa.Table]
    patients: tuple[str, ...]

    def column(self, form: TableFormat, name: str) -> np.ndarray:
        """Return a column of one of the tables: numbers as floats, NaN where null."""
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

    The figures are those that `evaluate` reports over all cases, made by the same functions. A
    question that was not put is left out, and so is one whose findings have one class alone.
    """
    measured: dict[str, Samples] = {}
    for form, (_, questions) in _TABLES.items():
        if cases.tables[form].num_rows:
            owners = cases.column(form, "subject_id").tolist()
            own_weights = unit_weights(weights, cases.patients, owners)
            for question, figures in questions(cases, own_weights):
                # Not those of single classes and directions, which have a full stop.
                names = [name for name in figures if "." not in name]
                measured |= {f"{question}.{name}": figures[name] for name in names}
    return measured


_Questions = Iterator[tuple[str, dict[str, Samples]]]


class _Asked(NamedTuple):
    # A row for each finding that has both classes, a column for each image.
    margins: Matrix
    truth: Truth
    levels: list[float | None]
    weights: Weights


def _asked(cases: SampleResults, form: TableFormat, level: str, weights: Weights) -> _Asked:
    # Of a table of scores or probes; `level` names the column of each finding's level.
    column = {
        name: cases.column(form, name) for name in ("image_id", "finding", "margin", "truth", level)
    }
    images, findings = (column[name].astype(str) for name in ("image_id", "finding"))
    _, first, image = np.unique(images, return_index=True, return_inverse=True)
    _, first_of, finding = np.unique(findings, return_index=True, return_inverse=True)
    margins = np.zeros((len(first_of), len(first)))
    truth = np.full(margins.shape, UNKNOWN, dtype=np.int8)
    margins[finding, image] = column["margin"]
    truth[finding, image] = np.nan_to_num(column["truth"], nan=UNKNOWN)
    both = (truth == 1).any(axis=1) & (truth == 0).any(axis=1)
    levels = [None if np.isnan(value) else float(value) for value in column[level][first_of][both]]
    return _Asked(margins[both], truth[both], levels, weights[:, first])


def _zero_shot(cases: SampleResults, weights: Weights) -> _Questions:
    offset, threshold = (
        _asked(cases, results.SCORES, level, weights) for level in ("offset", "threshold")
    )
    yield "zero_shot", mean_over_findings(ranking, *offset)
    yield "decisions", mean_over_findings(decision_metrics, *threshold)


def _probes(cases: SampleResults, weights: Weights) -> _Questions:
    cells = _asked(cases, results.PROBES, "threshold", weights)
    yield "probe", mean_over_findings(ranking, *cells._replace(levels=[None] * len(cells.levels)))
    yield "probe_decisions", mean_over_findings(decision_metrics, *cells)


def _grounding(cases: SampleResults, weights: Weights) -> _Questions:
    rows = cases.tables[results.GROUNDINGS].drop_columns(["grid"]).to_pylist()
    yield "grounding", measure_grounding(rows, weights)


def _ranks(cases: SampleResults, weights: Weights) -> _Questions:
    columns = ("question", "direction", "rank", "own_rank")
    question, direction, *ranks = (cases.column(results.RANKS, name) for name in columns)
    for name in dict.fromkeys(question.tolist()):
        ways = {
            way: (question == name) & (direction == way)
            for way in dict.fromkeys(direction[question == name].tolist())
        }
        units = next(iter(ways.values()))  # the queries of every way are those of the same units
        yield (
            name,
            measure_ranks(
                {way: [each[own] for each in ranks] for way, own in ways.items()}, weights[:, units]
            ),
        )


_TABLES: dict[TableFormat, tuple[list[str], Callable[[SampleResults, np.ndarray], _Questions]]] = {
    results.SCORES: (["image_id", "finding", "truth"], _zero_shot),
    results.GROUNDINGS: (["image_id", "phrase_key"], _grounding),
    results.RANKS: (["question", "direction", "image_id"], _ranks),
    results.PROBES: (["image_id", "finding", "truth"], _probes),
}
"""The columns that say which case a row is, equal in all runs that are compared; and the figures
of a table, given the weights of its rows."""
