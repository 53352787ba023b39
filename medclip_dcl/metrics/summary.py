"""The figures of each question, with their intervals: findings, boxes, ranks."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int, Int8

from medclip_dcl.metrics.bootstrap import Figure, estimate
from medclip_dcl.metrics.classification import accuracy, balanced_accuracy, roc_auc
from medclip_dcl.metrics.recall import chance_recall, median_rank, recall_at

UNKNOWN = -1
"""Truth of a finding that nobody stated."""

_ONE_CLASS = "no film of one of the two classes"
_MEASURES: dict[str, Callable[[np.ndarray, np.ndarray], float | None]] = {
    "auc": roc_auc,
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
}


def finding_figures(
    margins: Float[np.ndarray, " films"],
    truth: Int8[np.ndarray, " films"],
    subjects: Sequence[str],
    samples: int,
    generator: np.random.Generator,
) -> dict[str, Figure]:
    """Measure one finding on the films whose truth is known.

    Args:
        margins: score of the positive prompt minus that of the negative.
        truth: 1 present, 0 absent, `UNKNOWN` left out.
        subjects: patient of every film.
        samples: bootstrap samples.
        generator: source of the resamples.

    Returns:
        `auc`, `accuracy` (at a margin of 0) and `balanced_accuracy`.
    """
    known = truth != UNKNOWN
    kept, positive = margins[known], truth[known] == 1
    owners = [owner for owner, keep in zip(subjects, known, strict=True) if keep]

    def measure(rows: np.ndarray) -> dict[str, float | None]:
        return {name: of(kept[rows], positive[rows]) for name, of in _MEASURES.items()}

    return estimate(measure, owners, samples, generator, _ONE_CLASS)


def mean_finding_figures(
    margins: Float[np.ndarray, "findings films"],
    truth: Int8[np.ndarray, "findings films"],
    subjects: Sequence[str],
    samples: int,
    generator: np.random.Generator,
) -> dict[str, Figure]:
    """Average the figures of several findings, resampling their films together.

    Args:
        margins: score of the positive prompt minus that of the negative.
        truth: 1 present, 0 absent, `UNKNOWN` left out.
        subjects: patient of every film.
        samples: bootstrap samples.
        generator: source of the resamples.

    Returns:
        `mean_auc`, `mean_accuracy` and `mean_balanced_accuracy` over the findings that
        have both classes; a finding that loses one in a resample is left out of it.
    """

    def measure(rows: np.ndarray) -> dict[str, float | None]:
        drawn = [
            (margin[rows][known], state[rows][known] == 1)
            for margin, state in zip(margins, truth, strict=True)
            if (known := state[rows] != UNKNOWN).any()
        ]
        return {
            f"mean_{name}": _mean([of(*pair) for pair in drawn if 0 < pair[1].sum() < len(pair[1])])
            for name, of in _MEASURES.items()
        }

    return estimate(measure, subjects, samples, generator, "no finding has films of both classes")


def mean_figures(
    columns: Mapping[str, Sequence[float | None]],
    subjects: Sequence[str],
    samples: int,
    generator: np.random.Generator,
) -> dict[str, Figure]:
    """Average quantities that were measured one unit at a time.

    Args:
        columns: name -> one value per unit; None where it is undefined for that unit.
        subjects: patient of every unit.
        samples: bootstrap samples.
        generator: source of the resamples.

    Returns:
        The mean of each column over the units where it is defined.
    """
    arrays = {
        name: np.array([np.nan if value is None else value for value in values], dtype=float)
        for name, values in columns.items()
    }

    def measure(rows: np.ndarray) -> dict[str, float | None]:
        drawn = {name: values[rows] for name, values in arrays.items()}
        defined = {name: values[~np.isnan(values)] for name, values in drawn.items()}
        return {
            name: float(values.mean()) if len(values) else None for name, values in defined.items()
        }

    return estimate(measure, subjects, samples, generator, "undefined for every unit")


def rank_figures(
    ranks: Int[np.ndarray, " queries"],
    lengths: Sequence[int],
    subjects: Sequence[str],
    samples: int,
    generator: np.random.Generator,
) -> dict[str, Figure]:
    """Measure recall and median rank of queries.

    Args:
        ranks: best rank of each query, from 1; the pool stays as it is when patients
            are resampled.
        lengths: the K of recall at K.
        subjects: patient of every query.
        samples: bootstrap samples.
        generator: source of the resamples.

    Returns:
        `recall_at_K` for each K, and `median_rank`.
    """

    def measure(rows: np.ndarray) -> dict[str, float | None]:
        recalls = {f"recall_at_{length}": recall_at(ranks[rows], length) for length in lengths}
        return recalls | {"median_rank": median_rank(ranks[rows])}

    return estimate(measure, subjects, samples, generator, "no queries")


def chance_levels(
    correct: Mapping[str, Bool[np.ndarray, "queries items"]], lengths: Sequence[int]
) -> dict[str, float | None]:
    """Give the recall that a random order would reach.

    Args:
        correct: direction -> whether the item answers the query; "": the only direction.
        lengths: the K of recall at K.

    Returns:
        `recall_at_K` for each K, after the direction's name and a full stop where it has one.
    """
    return {
        f"{name}.recall_at_{length}" if name else f"recall_at_{length}": chance_recall(own, length)
        for name, own in correct.items()
        for length in lengths
    }


def _mean(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None
