"""Retrieval: sentence from box, box from sentence, report from image and back.

Queries in both directions of a question -> figures, chance, and a rank per query.

Each query is ranked twice. First, items that read alike are one item, and any that bears
the query's words answers it: no model could tell them apart. Then as papers count: every
unit is an item of its own, and the query's own unit alone is a hit, so that its doubles,
which score the same, stand before it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from medclip_dcl.evaluation import summary
from medclip_dcl.evaluation.inputs import LENGTHS, BootstrapOptions, EvalResult
from medclip_dcl.evaluation.metrics import best_ranks, chance_recall
from medclip_dcl.models.similarity import roi_align


def box_vectors(
    regions: Float[Tensor, "images rows columns dim"],
    boxes: Float[Tensor, "boxes 4"],
    image_of_box: Int[Tensor, " boxes"],
) -> Float[Tensor, "boxes dim"]:
    """Pool the region vectors inside each box.

    Args:
        regions: unit vectors.
        boxes: x, y, width, height, each as a share of the image's width or height, (0, 1].
        image_of_box: row of `regions` that each box lies on.

    Returns:
        Unit vectors.

    Source: Wang et al. 2023, Section 3.3: RoIAlign on the region embeddings.
    """
    rows, columns = regions.shape[1:3]
    x, y, width, height = boxes.unbind(dim=1)
    cells = torch.stack([x * columns, y * rows, (x + width) * columns, (y + height) * rows], dim=1)
    pooled = roi_align(regions.permute(0, 3, 1, 2), cells, image_of_box, spatial_scale=1.0)
    return functional.normalize(pooled.flatten(1), dim=-1)


def report_scores(
    scores: Float[Tensor, "texts images"],
    text: Int[Tensor, " sayings"],
    report: Int[Tensor, " sayings"],
    reports: int,
) -> Float[Tensor, "reports images"]:
    """Score whole reports: the mean over their sentences.

    Args:
        scores: image-sentence scores of distinct sentences.
        text: row of `scores` of each saying, a sentence in a report.
        report: the report of each saying, in [0, reports); every report has at least one.
        reports: number of reports.

    Returns:
        Mean image-sentence score of each report, in [-1, 1].

    Source: ours; Wang et al. 2023 score sentences alone.
    """
    total = scores.new_zeros(reports, scores.shape[1]).index_add_(0, report, scores[text])
    count = torch.bincount(report, minlength=reports).unsqueeze(1)
    return total / count


@dataclass(frozen=True)
class Asked:
    """One direction of a question: every query's score of every item, twice."""

    scores: Float[np.ndarray, "queries items"]
    hits: Bool[np.ndarray, "queries items"]
    own_scores: Float[np.ndarray, "queries units"]
    own: Bool[np.ndarray, "queries units"]


def rank_directions(
    question: str,
    asked: Mapping[str, Asked],
    image_ids: Sequence[str],
    subjects: Sequence[str],
    bootstrap: BootstrapOptions,
) -> tuple[EvalResult, list[dict[str, Any]]]:
    """Rank the queries of both directions.

    Args:
        question: its name in the results.
        asked: direction -> scores and truth; query i of each belongs to unit i.
        image_ids: image of each unit.
        subjects: patient of each unit.
        bootstrap: of the intervals.

    Returns:
        The outcome: a group per direction, and over both `recall` and `median_rank` as the
        paper's Table 1 has them, `own_` before what counts the query's own unit alone. And
        the rows of `results.RANKS`.

    Source: Wang et al. 2023, Section 3.3 and Table 5.
    """
    ranks: dict[str, tuple[Int[np.ndarray, " queries"], Int[np.ndarray, " queries"]]] = {
        name: (best_ranks(item.scores, item.hits), best_ranks(item.own_scores, item.own))
        for name, item in asked.items()
    }
    figures, groups = summary.retrieval_figures(
        ranks, LENGTHS, subjects, bootstrap.samples, bootstrap.generator()
    )
    pool: dict[str, int] = {}
    chance: dict[str, float | None] = {}
    for name, item in asked.items():
        pool |= {name: item.hits.shape[1], f"{name}.own": item.own.shape[1]}
        for length in LENGTHS:
            chance[f"{name}.recall_at_{length}"] = chance_recall(item.hits, length)
            chance[f"{name}.own_recall_at_{length}"] = chance_recall(item.own, length)
    chance |= {
        f"{column}recall": _mean(
            [chance[f"{name}.{column}recall_at_{k}"] for name in asked for k in summary.PAPER_K]
        )
        for column in ("", "own_")
    }
    rows = [
        {
            "question": question,
            "direction": name,
            "image_id": image_ids[unit],
            "subject_id": subjects[unit],
            "rank": int(rank),
            "own_rank": int(own_rank),
        }
        for name, pair in ranks.items()
        for unit, (rank, own_rank) in enumerate(zip(*pair, strict=True))
    ]
    return EvalResult("", pool, chance, figures, groups), rows


def _mean(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None
