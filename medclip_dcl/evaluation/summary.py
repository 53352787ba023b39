"""The figures of each question, with their intervals: findings, boxes, ranks."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int, Int8

from medclip_dcl.evaluation.bootstrap import Figure, estimate
from medclip_dcl.evaluation.metrics import (
    accuracy,
    balanced_accuracy,
    brier_score,
    calibration_error,
    median_rank,
    recall_at,
    roc_auc,
)

UNKNOWN = -1
"""Truth of a finding that nobody stated."""

PAPER_K = (10, 50, 100)
"""The K whose recalls, in both directions, make up Table 1's Recall."""

_ONE_CLASS = "no image of one of the two classes"
_MEASURES: dict[str, Callable[[np.ndarray, np.ndarray], float | None]] = {
    "auc": roc_auc,
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
}


def finding_figures(
    margins: Float[np.ndarray, " images"],
    truth: Int8[np.ndarray, " images"],
    subjects: Sequence[str],
    samples: int,
    generator: np.random.Generator,
) -> dict[str, Figure]:
    """Measure one finding on the images whose truth is known.

    Args:
        margins: score of the positive prompt minus that of the negative.
        truth: 1 present, 0 absent, `UNKNOWN` left out.
        subjects: patient of every image.
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
    margins: Float[np.ndarray, "findings images"],
    truth: Int8[np.ndarray, "findings images"],
    subjects: Sequence[str],
    samples: int,
    generator: np.random.Generator,
) -> dict[str, Figure]:
    """Average the figures of several findings, resampling their images together.

    Args:
        margins: score of the positive prompt minus that of the negative.
        truth: 1 present, 0 absent, `UNKNOWN` left out.
        subjects: patient of every image.
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

    return estimate(measure, subjects, samples, generator, "no finding has images of both classes")


def probability_figures(
    score: Float[np.ndarray, " images"],
    probability: Float[np.ndarray, " images"],
    truth: Int8[np.ndarray, " images"],
    subjects: Sequence[str],
    samples: int,
    generator: np.random.Generator,
) -> dict[str, Figure]:
    """Measure the probability of one finding, and the bare score beside it.

    Args:
        score: the score that the probability was made from, in [0, 1].
        probability: what is said, in [0, 1].
        truth: 1 present, 0 absent, `UNKNOWN` left out.
        subjects: patient of every image.
        samples: bootstrap samples.
        generator: source of the resamples.

    Returns:
        `calibration_error` and `brier` of the probability, and with `score_` of the score.
    """
    known = truth != UNKNOWN
    positive = truth[known] == 1
    owners = [owner for owner, keep in zip(subjects, known, strict=True) if keep]
    columns = {"": probability[known], "score_": score[known]}

    def measure(rows: np.ndarray) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        for prefix, values in columns.items():
            drawn = values[rows], positive[rows]
            found[f"{prefix}calibration_error"] = calibration_error(*drawn)
            found[f"{prefix}brier"] = brier_score(*drawn)
        return found

    return estimate(measure, owners, samples, generator, "no image with a known truth")


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


def class_figures(
    answers: Int[np.ndarray, " images"],
    shown: Int[np.ndarray, " images"],
    classes: Sequence[int],
    subjects: Sequence[str],
    samples: int,
    generator: np.random.Generator,
) -> tuple[dict[str, Figure], dict[int, Figure]]:
    """Measure answers to a question with several classes.

    Args:
        answers: class that each image was given; -1: none.
        shown: class of each image.
        classes: the classes that are asked for.
        subjects: patient of every image.
        samples: bootstrap samples.
        generator: source of the resamples.

    Returns:
        `accuracy` and `mean_recall`, the mean over classes of the share that is
        recognised; and that share by class. A class without an image is left out.
    """
    right = answers == shown

    def measure(rows: np.ndarray) -> dict[str, float | None]:
        recalls = {index: _share(right[rows][shown[rows] == index]) for index in classes}
        means = {"accuracy": _share(right[rows]), "mean_recall": _mean([*recalls.values()])}
        return means | {str(index): value for index, value in recalls.items()}

    every = estimate(measure, subjects, samples, generator, "no image of this class")
    by_class = {index: every.pop(str(index)) for index in classes}
    return every, by_class


def retrieval_figures(
    ranks: Mapping[str, tuple[Int[np.ndarray, " queries"], Int[np.ndarray, " queries"]]],
    lengths: Sequence[int],
    subjects: Sequence[str],
    samples: int,
    generator: np.random.Generator,
) -> tuple[dict[str, Figure], dict[str, dict[str, Figure]]]:
    """Measure retrieval in several directions whose queries belong to the same units.

    Args:
        ranks: direction -> best rank of each query among items, and among units.
        lengths: the K of recall at K; those of the paper among them.
        subjects: patient of every unit.
        samples: bootstrap samples.
        generator: source of the resamples.

    Returns:
        Over all directions `recall`, the mean of R@10, R@50 and R@100 of each, and
        `median_rank`, the mean of their medians; and by direction `recall_at_K` and
        `median_rank`. Names with `own_` are of the ranks among units.

    Source: Wang et al. 2023, Table 1 and Table 5: (.10 + .31 + .48 + .10 + .33 + .50) / 6 = .30.
    """
    columns = {
        (name, prefix): pair[column]
        for name, pair in ranks.items()
        for column, prefix in enumerate(("", "own_"))
    }

    def measure(rows: np.ndarray) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        for (name, prefix), all_ranks in columns.items():
            drawn = all_ranks[rows]
            for length in lengths:
                found[f"{name}.{prefix}recall_at_{length}"] = recall_at(drawn, length)
            found[f"{name}.{prefix}median_rank"] = median_rank(drawn)
        for prefix in ("", "own_"):
            medians = [found[f"{name}.{prefix}median_rank"] for name in ranks]
            recalls = [found[f"{name}.{prefix}recall_at_{k}"] for name in ranks for k in PAPER_K]
            found |= {f"{prefix}recall": _mean(recalls), f"{prefix}median_rank": _mean(medians)}
        return found

    every = estimate(measure, subjects, samples, generator, "no queries")
    groups: dict[str, dict[str, Figure]] = {name: {} for name in ranks}
    for name, figure in every.items():
        group, point, short = name.partition(".")
        if point:
            groups[group][short] = figure
    return {name: figure for name, figure in every.items() if "." not in name}, groups


def _mean(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None


def _share(right: np.ndarray) -> float | None:
    return float(right.mean()) if len(right) else None
