"""Retrieval: sentence from box, box from sentence, report from image and back.

Each query is ranked twice.

    by words  items with the same text are one item, and any with the query's words answers it:
              no model could tell them apart
    own_      as papers count, Wang et al. 2023 among them: every unit is an item of its own, and
              the query's own unit alone is a hit. Its duplicates, which score the same, rank before
              it; of ties the paper says nothing
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from medclip_dcl.data.grayscale import Window
from medclip_dcl.evaluation import metrics
from medclip_dcl.evaluation.evaluated_model import EncodedImages, EvaluatedModel
from medclip_dcl.evaluation.grounding import BoxedSentence
from medclip_dcl.evaluation.results import EvalResult, Rows
from medclip_dcl.models.similarity import box_vectors

_LENGTHS = (1, 5, 10, 50, 100)  # the K of recall at K; the paper reports 10, 50 and 100
_PAPER_K = (10, 50, 100)  # the K whose recalls, in both directions, make up Table 1's Recall

READINGS = ("", "own_")  # what stands in front of the figures of each way to rank

Readings = Sequence[metrics.Ranks]  # the ranks of the same queries by each of `READINGS`


@dataclass(frozen=True)
class _Direction:
    """One direction of a question: every query's score of every item, and of every unit."""

    scores: Float[np.ndarray, "queries items"]
    hits: Bool[np.ndarray, "queries items"]
    own_scores: Float[np.ndarray, "queries units"]
    own: Bool[np.ndarray, "queries units"]


def _rank_directions(
    question: str,
    directions: Mapping[str, _Direction],
    ids: Sequence[Mapping[str, str]],
    bootstrap: metrics.BootstrapOptions,
) -> tuple[EvalResult, Rows]:
    # Ranks the queries of both directions; query i of each belongs to unit i, of these ids.
    subjects = [unit["subject_id"] for unit in ids]
    ranks = {
        name: (
            metrics.best_ranks(item.scores, item.hits),
            metrics.best_ranks(item.own_scores, item.own),
        )
        for name, item in directions.items()
    }
    every = metrics.estimate(
        lambda weights: measure_ranks(ranks, weights), subjects, bootstrap, "no queries"
    )
    figures: dict[str, metrics.Figure] = {}
    groups: dict[str, dict[str, metrics.Figure]] = {name: {} for name in ranks}
    for name, figure in every.items():
        direction, _, own = name.rpartition(".")
        (groups[direction] if direction else figures)[own] = figure
    pool: dict[str, int] = {}
    chance: dict[str, float | None] = {}
    for name, item in directions.items():
        pool |= {name: item.hits.shape[1], f"{name}.own": item.own.shape[1]}
        for length in _LENGTHS:
            chance[f"{name}.recall_at_{length}"] = metrics.chance_recall(item.hits, length)
            chance[f"{name}.own_recall_at_{length}"] = metrics.chance_recall(item.own, length)
    for prefix in READINGS:
        each = [chance[f"{name}.{prefix}recall_at_{k}"] for name in directions for k in _PAPER_K]
        values = [value for value in each if value is not None]
        chance[f"{prefix}recall"] = float(np.mean(values)) if values else None
    rows = [
        {
            "question": question,
            "direction": name,
            **ids[unit],
            "rank": int(rank),
            "own_rank": int(own_rank),
        }
        for name, readings in ranks.items()
        for unit, (rank, own_rank) in enumerate(zip(*readings, strict=True))
    ]
    return EvalResult("", pool, chance, figures, groups), rows


def measure_ranks(
    ranks: Mapping[str, Readings], weights: metrics.Weights
) -> dict[str, metrics.Samples]:
    """Measure every direction as `DIRECTION.figure`, and all together as the paper's Table 1 does.

    Query i of each direction belongs to unit i; the pool of items stays as it is when patients are
    drawn. `recall` is the mean of R@10, R@50 and R@100 of
    each direction, `median_rank` the mean of their medians. The paper's own protocol gives those
    with `own_`: "the correctly retrieved item is the one that is paired with the query item". It
    says nothing of ties.

    Source: Wang et al. 2023, Table 1 and Table 5: (.10 + .31 + .48 + .10 + .33 + .50) / 6 = .30.
    """
    figures: dict[str, metrics.Samples] = {}
    for column, prefix in enumerate(READINGS):
        each = {
            name: {
                f"recall_at_{k}": metrics.recall_at(readings[column], k, weights) for k in _LENGTHS
            }
            | {"median_rank": metrics.median(readings[column], weights)}
            for name, readings in ranks.items()
        }
        recalls = [one[f"recall_at_{k}"] for one in each.values() for k in _PAPER_K]
        figures[f"{prefix}recall"] = metrics.mean_of(recalls)
        figures[f"{prefix}median_rank"] = metrics.mean_of(
            [one["median_rank"] for one in each.values()]
        )
        for name, one in each.items():
            figures |= {f"{name}.{prefix}{figure}": values for figure, values in one.items()}
    return figures


def evaluate_boxes(
    model: EvaluatedModel,
    images: EncodedImages,
    units: Sequence[BoxedSentence],
    bootstrap: metrics.BootstrapOptions,
) -> tuple[EvalResult, Rows]:
    """Find the sentence of each box among all, and a box of each sentence among all.

    A unit is a box; all boxes that one sentence has on one image are its own.

    Source: Wang et al. 2023, Section 3.2 and Table 5.
    """
    each = [(unit, box) for unit in units for box in unit.boxes.tolist()]
    # Of the boxed images alone: the split may have a hundred times as many.
    owner = np.array([unit.image for unit, _ in each])
    boxed, image_of_box = np.unique(owner, return_inverse=True)
    regions = images.regions[torch.from_numpy(boxed)].float()
    shares = torch.tensor([_share(box, images.window(unit.image)) for unit, box in each])
    vectors = box_vectors(regions, shares, torch.from_numpy(image_of_box))
    keys = np.array([unit.key for unit, _ in each])
    distinct, index = np.unique(keys, return_inverse=True)
    text_of = {unit.key: unit.text for unit in units}
    texts = model.embed_sentences([text_of[key] for key in distinct]).to(vectors.device)
    # Sentences with the same text are scored once; as units each has its own column again.
    scores = (vectors @ texts.T).cpu().numpy()  # (boxes, distinct sentences)
    by_unit = scores[:, index]  # (boxes, the sentence of each box)
    alike = keys[:, None] == keys[None, :]
    own = alike & (owner[:, None] == owner[None, :])
    hits = index[:, None] == np.arange(len(distinct))[None, :]
    directions = {
        "box_to_sentence": _Direction(scores, hits, by_unit, own),
        "sentence_to_box": _Direction(by_unit.T, alike, by_unit.T, own),
    }
    names = [images.ids_of(image) for image in owner.tolist()]
    return _rank_directions("boxes", directions, names, bootstrap)


def _share(box: Sequence[float], seen: Window) -> list[float]:
    # A box, x, y, width and height in pixels, as shares of what the model sees.
    x, y, width, height = box
    corner = [(x - seen.x) / seen.width, (y - seen.y) / seen.height]
    return [*corner, width / seen.width, height / seen.height]


def reports_of_images(
    study_ids: Sequence[str],
    sentences: Sequence[Mapping[str, Any]],
    pool: int,
    generator: np.random.Generator,
) -> tuple[list[int], list[list[str]]]:
    """Draw at most `pool` images, one per study that has a report.

    Gives the numbers of the images, ascending, and the sentences of each one's report.
    """
    text_of: dict[str, list[str]] = defaultdict(list)
    for row in sentences:
        text_of[row["study_id"]].append(row["text"])
    first = {study_id: image for image, study_id in reversed(list(enumerate(study_ids)))}
    images = sorted(image for study_id, image in first.items() if study_id in text_of)
    if len(images) > pool:
        images = sorted(generator.choice(images, pool, replace=False).tolist())
    return images, [text_of[study_ids[image]] for image in images]


def report_scores(
    scores: Float[Tensor, "texts images"],
    text: Int[Tensor, " occurrences"],
    report: Int[Tensor, " occurrences"],
    reports: int,
) -> Float[Tensor, "reports images"]:
    """Score whole reports: the mean score of their sentences, in [-1, 1].

    `text` and `report` are the row of `scores` and the report of each sentence that a report has;
    every one of the `reports` has one at least.

    Source: ours; Wang et al. 2023 score sentences alone.
    """
    # Added up by index: reports differ in length, and padding would multiply the scores.
    total = scores.new_zeros(reports, scores.shape[1]).index_add_(0, report, scores[text])
    count = torch.bincount(report, minlength=reports).unsqueeze(1)
    return total / count


def evaluate_reports(
    model: EvaluatedModel,
    images: EncodedImages,
    reports: Sequence[Sequence[str]],
    bootstrap: metrics.BootstrapOptions,
) -> tuple[EvalResult, Rows]:
    """Find the report of each image among all, and an image of each report among all.

    A report is its sentences, at least one; reports of the same sentences are one item.

    Source: ours; a report scores the mean of its sentences' image-sentence scores.
    """
    texts = sorted({text for report in reports for text in report})
    row_of = {text: row for row, text in enumerate(texts)}
    occurrences = [
        (row_of[text], number) for number, report in enumerate(reports) for text in report
    ]
    text, report = torch.tensor(occurrences, device=images.regions.device).unbind(dim=1)
    sentence_scores = model.score(images.regions, model.embed_sentences(texts))
    scores = report_scores(sentence_scores, text, report, len(reports)).cpu().numpy()
    # Reports with the same sentences, in whatever order, are one item under one number.
    names: dict[tuple[str, ...], int] = {}
    number = np.array([names.setdefault(tuple(sorted(set(r))), len(names)) for r in reports])
    distinct, first = np.unique(number, return_index=True)
    alike = number[:, None] == number[None, :]
    own = np.eye(len(reports), dtype=bool)
    directions = {
        "image_to_report": _Direction(
            scores[first].T, number[:, None] == distinct[None, :], scores.T, own
        ),
        "report_to_image": _Direction(scores, alike, scores, own),
    }
    ids = [images.ids_of(image) for image in range(len(reports))]
    return _rank_directions("reports", directions, ids, bootstrap)
