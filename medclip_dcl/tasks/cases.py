"""The cases behind an evaluation's figures, and those figures in every resample of patients.

What `evaluate` keeps case by case is enough to measure a run anew on any draw of patients,
without its model. Runs that were asked the same cases can be compared patient by patient.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int

from medclip_dcl.artifacts import results
from medclip_dcl.artifacts.frame import Artifact
from medclip_dcl.artifacts.tables import TableFormat, read_table
from medclip_dcl.errors import ArtifactStale
from medclip_dcl.metrics.resampled import (
    resampled_auc,
    resampled_balanced_accuracy,
    resampled_mean,
    resampled_median,
    unit_weights,
)
from medclip_dcl.metrics.summary import PAPER_K

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
class Cases:
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


def read_cases(artifact: Artifact) -> Cases:
    """Read the cases of a run.

    Args:
        artifact: its results.

    Returns:
        The cases.
    """
    tables = {form.file: read_table(artifact.path, form) for form in FORMS}
    patients = {name for table in tables.values() for name in table["subject_id"].to_pylist()}
    return Cases(tables, tuple(sorted(patients)))


def check_same_cases(runs: Sequence[Cases]) -> None:
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
                    "all runs on the same films with the same `evaluate` settings and seed"
                )


def measure(cases: Cases, weights: Int[np.ndarray, "S patients"]) -> dict[str, Samples]:
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


def _weights(cases: Cases, form: TableFormat, weights: np.ndarray) -> np.ndarray:
    return unit_weights(weights, cases.patients, cases.column(form, "subject_id").tolist())


def _zero_shot(cases: Cases, weights: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    findings = cases.column(results.SCORES, "finding")
    truth, margin = (cases.column(results.SCORES, name) for name in ("truth", "margin"))
    each = _weights(cases, results.SCORES, weights)
    yield from _two_classes("zero_shot", findings, margin, truth, each)


def _probes(cases: Cases, weights: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
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


def _classes(cases: Cases, weights: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    shown, answer = (cases.column(results.CLASSES, name) for name in ("finding", "answer"))
    each = _weights(cases, results.CLASSES, weights)
    right = np.array(shown == answer, dtype=float)
    recalls = [
        resampled_mean(right[shown == name], each[:, shown == name])
        for name in dict.fromkeys(shown.tolist())
    ]
    if recalls:
        yield "classes.mean_recall", _mean(recalls)


def _grounding(cases: Cases, weights: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    form = results.GROUNDINGS
    if not cases.tables[form.file].num_rows:
        return
    each = _weights(cases, form, weights)
    cnr, miou, pointed = (cases.column(form, name) for name in ("cnr", "miou", "pointed"))
    yield "grounding.cnr", resampled_mean(np.abs(cnr), each)
    yield "grounding.cnr_signed", resampled_mean(cnr, each)
    yield "grounding.miou", resampled_mean(miou, each)
    yield "grounding.pointing", resampled_mean(pointed, each)


def _gallery(cases: Cases, weights: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    rank = cases.column(results.BOX_ANSWERS, "gallery_rank")
    if not np.isnan(rank).all():
        each = _weights(cases, results.BOX_ANSWERS, weights)
        for length in (1, 5):
            hit = np.where(np.isnan(rank), np.nan, rank <= length)
            yield f"gallery.recall_at_{length}", resampled_mean(hit, each)


def _ranks(cases: Cases, weights: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
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
