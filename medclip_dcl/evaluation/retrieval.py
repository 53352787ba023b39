"""Retrieval: sentence from box, box from sentence, report from image and back.

Each query is ranked three times.

    by words  items with the same text are one item, and any with the query's words answers it:
              no model could tell them apart
    own_      as papers count, Wang et al. 2023 among them: every unit is an item of its own, and
              the query's own unit alone is a hit. Its duplicates, which score the same, rank before
              it; of ties the paper says nothing
    expected_  the same with duplicates in random order: 1 + units above + half of those that tie
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from medclip_dcl.evaluation.bootstrap import BootstrapOptions, Samples, Weights, estimate
from medclip_dcl.evaluation.evaluated_model import EncodedImages, EvaluatedModel
from medclip_dcl.evaluation.grounding import BoxedSentence
from medclip_dcl.evaluation.metrics import (
    Ranks,
    best_ranks,
    chance_recall,
    expected_ranks,
    mean_of,
    median,
    recall_at,
)
from medclip_dcl.evaluation.results import EvalResult, Rows
from medclip_dcl.models.similarity import box_vectors

GALLERY_LENGTHS = (1, 5)
"""The K of recall at K in a gallery."""

_LENGTHS = (1, 5, 10, 50, 100)  # the K of recall at K; the paper reports 10, 50 and 100
_PAPER_K = (10, 50, 100)  # the K whose recalls, in both directions, make up Table 1's Recall
_SHOWN = 5  # gallery sentences of each box that the report shows

READINGS = ("", "own_", "expected_")
"""What stands in front of the figures of each way to rank."""

Readings = Sequence[Ranks]
"""The ranks of the same queries by each of `READINGS`."""


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
    image_ids: Sequence[str],
    subjects: Sequence[str],
    bootstrap: BootstrapOptions,
) -> tuple[EvalResult, Rows]:
    # Ranks the queries of both directions; query i of each belongs to unit i.
    ranks = {
        name: (
            best_ranks(item.scores, item.hits),
            best_ranks(item.own_scores, item.own),
            expected_ranks(item.own_scores, item.own),
        )
        for name, item in directions.items()
    }
    every = estimate(
        lambda weights: measure_ranks(ranks, weights), subjects, bootstrap, "no queries"
    )
    figures = {name: figure for name, figure in every.items() if "." not in name}
    groups = {
        name: {
            figure.removeprefix(f"{name}."): value
            for figure, value in every.items()
            if figure.startswith(f"{name}.")
        }
        for name in ranks
    }
    pool: dict[str, int] = {}
    chance: dict[str, float | None] = {}
    for name, item in directions.items():
        pool |= {name: item.hits.shape[1], f"{name}.own": item.own.shape[1]}
        for length in _LENGTHS:
            chance[f"{name}.recall_at_{length}"] = chance_recall(item.hits, length)
            own = chance_recall(item.own, length)  # a random order has no ties
            chance |= {f"{name}.{prefix}recall_at_{length}": own for prefix in READINGS[1:]}
    for prefix in READINGS:
        each = [chance[f"{name}.{prefix}recall_at_{k}"] for name in directions for k in _PAPER_K]
        known = [value for value in each if value is not None]
        chance[f"{prefix}recall"] = float(np.mean(known)) if known else None
    rows = [
        {
            "question": question,
            "direction": name,
            "image_id": image_ids[unit],
            "subject_id": subjects[unit],
            "rank": int(rank),
            "own_rank": int(own_rank),
            "expected_rank": float(expected),
        }
        for name, readings in ranks.items()
        for unit, (rank, own_rank, expected) in enumerate(zip(*readings, strict=True))
    ]
    return EvalResult("", pool, chance, figures, groups), rows


def measure_ranks(ranks: Mapping[str, Readings], weights: Weights) -> dict[str, Samples]:
    """Measure every direction as `DIRECTION.figure`, and all together as the paper's Table 1 does.

    Query i of each direction belongs to unit i. `recall` is the mean of R@10, R@50 and R@100 of
    each direction, `median_rank` the mean of their medians. The paper's own protocol gives those
    with `own_`: "the correctly retrieved item is the one that is paired with the query item". It
    says nothing of ties.

    Source: Wang et al. 2023, Table 1 and Table 5: (.10 + .31 + .48 + .10 + .33 + .50) / 6 = .30.
    """
    found: dict[str, Samples] = {}
    for column, prefix in enumerate(READINGS):
        each = {
            name: rank_samples(readings[column], _LENGTHS, weights)
            for name, readings in ranks.items()
        }
        recalls = [one[f"recall_at_{k}"] for one in each.values() for k in _PAPER_K]
        found[f"{prefix}recall"] = mean_of(recalls)
        found[f"{prefix}median_rank"] = mean_of([one["median_rank"] for one in each.values()])
        for name, one in each.items():
            found |= {f"{name}.{prefix}{figure}": values for figure, values in one.items()}
    return found


def rank_samples(ranks: Ranks, lengths: Sequence[int], weights: Weights) -> dict[str, Samples]:
    """Measure `recall_at_K` for each K, and `median_rank`, of queries.

    The pool of items stays as it is when patients are drawn.
    """
    recalls = {f"recall_at_{length}": recall_at(ranks, length, weights) for length in lengths}
    return recalls | {"median_rank": median(ranks, weights)}


def evaluate_boxes(
    model: EvaluatedModel,
    images: EncodedImages,
    units: Sequence[BoxedSentence],
    bootstrap: BootstrapOptions,
) -> tuple[EvalResult, Rows, Rows, Float[Tensor, "boxes dim"]]:
    """Find the sentence of each box among all, and a box of each sentence among all.

    A unit is a box; all boxes that one sentence has on one image are its own. The first rows are of
    `results.BOX_ANSWERS`, without what the gallery adds, the second of `results.RANKS`.

    Source: Wang et al. 2023, Section 3.2 and Table 5.
    """
    rows, shares, owner = _box_rows(images, units)
    # Of the boxed images alone: the split may have a hundred times as many.
    boxed, image_of_box = np.unique(owner, return_inverse=True)
    regions = images.regions[torch.from_numpy(boxed)].float()
    vectors = box_vectors(regions, torch.tensor(shares), torch.from_numpy(image_of_box))
    keys = np.array([row["phrase_key"] for row in rows])
    distinct, index = np.unique(keys, return_inverse=True)
    text_of = {unit.key: unit.text for unit in units}
    texts = model.embed_sentences([text_of[key] for key in distinct]).to(vectors.device)
    # Sentences with the same text are scored once; as units each has its own column again.
    scores = (vectors @ texts.T).cpu().numpy()  # (boxes, distinct sentences)
    each = scores[:, index]  # (boxes, the sentence of each box)
    alike = keys[:, None] == keys[None, :]
    own = alike & (np.array(owner)[:, None] == np.array(owner)[None, :])
    directions = {
        "box_to_sentence": _Direction(
            scores, index[:, None] == np.arange(len(distinct))[None, :], each, own
        ),
        "sentence_to_box": _Direction(each.T, alike, each.T, own),
    }
    image_ids = [row["image_id"] for row in rows]
    subjects = [row["subject_id"] for row in rows]
    outcome, ranks = _rank_directions("boxes", directions, image_ids, subjects, bootstrap)
    for row, rank in zip(rows, ranks, strict=False):  # boxes come before sentences
        row["sentence_rank"] = rank["rank"]
    return outcome, rows, ranks, vectors


def evaluate_gallery(
    model: EvaluatedModel,
    vectors: Float[Tensor, "boxes dim"],
    rows: Sequence[dict[str, Any]],
    sentences: Sequence[str],
    truth: Sequence[int | None],
    bootstrap: BootstrapOptions,
) -> EvalResult:
    """Find the sentence of each box in a gallery with one sentence per fine finding.

    Vectors and rows are those of `evaluate_boxes`; the rows' columns about the gallery are filled
    in. `truth` is each box's own row of the gallery; a box without one leaves the outcome.

    Source: ours; a closed set of sentences makes chance plain.
    """
    scores = (vectors @ model.embed_sentences(sentences).to(vectors.device).T).cpu().numpy()
    order = np.argsort(-scores, axis=1, kind="stable")[:, :_SHOWN]
    row_of = {box: row for box, row in enumerate(truth) if row is not None}
    known = list(row_of)
    correct = np.zeros((len(known), len(sentences)), dtype=bool)
    correct[np.arange(len(known)), list(row_of.values())] = True
    ranks = best_ranks(scores[known], correct)
    found = dict(zip(known, ranks.tolist(), strict=True))
    for index, row in enumerate(rows):
        row["gallery_rank"] = found.get(index)
        row["gallery_true"] = truth[index]
        row["gallery_best"] = order[index].tolist()
    subjects = [rows[index]["subject_id"] for index in known]
    figures = estimate(
        lambda weights: rank_samples(ranks, GALLERY_LENGTHS, weights),
        subjects,
        bootstrap,
        "no queries",
    )
    pool = {"boxes": len(known), "sentences": len(sentences)}
    absent = "" if known else "no box has its sentence in the gallery"
    chance = {f"recall_at_{k}": chance_recall(correct, k) for k in GALLERY_LENGTHS}
    return EvalResult(absent, pool, chance, figures, {})


def _box_rows(
    images: EncodedImages, units: Sequence[BoxedSentence]
) -> tuple[Rows, list[list[float]], list[int]]:
    # One row per box, the box as shares of what the model sees, and its image's number.
    rows: Rows = []
    shares, owner = [], []
    for unit in units:
        seen = images.window(unit.image)
        for x, y, across, down in unit.boxes.tolist():
            rows.append(
                {
                    **images.ids_of(unit.image),
                    "category": unit.category,
                    "phrase_key": unit.key,
                    "x": x,
                    "y": y,
                    "width": across,
                    "height": down,
                    "gallery_rank": None,
                    "gallery_true": None,
                    "gallery_best": [],
                }
            )
            corner = [(x - seen.x) / seen.width, (y - seen.y) / seen.height]
            shares.append([*corner, across / seen.width, down / seen.height])
            owner.append(unit.image)
    return rows, shares, owner


def reports_of_images(
    study_ids: Sequence[str],
    sentences: Sequence[Mapping[str, Any]],
    pool: int,
    generator: np.random.Generator,
) -> tuple[list[int], list[list[str]]]:
    """Draw at most `pool` images, one per study that has a report.

    Gives the numbers of the images, ascending, and the sentences of each one's report.
    """
    said: dict[str, list[str]] = defaultdict(list)
    for row in sentences:
        said[row["study_id"]].append(row["text"])
    first = {study_id: image for image, study_id in reversed(list(enumerate(study_ids)))}
    images = sorted(image for study_id, image in first.items() if study_id in said)
    if len(images) > pool:
        images = sorted(generator.choice(images, pool, replace=False).tolist())
    return images, [said[study_ids[image]] for image in images]


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
    bootstrap: BootstrapOptions,
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
    return _rank_directions("reports", directions, images.image_ids, images.subject_ids, bootstrap)
