"""Questions about boxes: is the heatmap in them, and which sentence is theirs.

Every question gives an `EvalResult` for `results.json` and the rows that it was made from.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from medclip_dcl.evaluation import metrics
from medclip_dcl.evaluation.bootstrap import BootstrapOptions, Figure, Samples, Weights, estimate
from medclip_dcl.evaluation.evaluated_model import EvaluatedModel
from medclip_dcl.evaluation.geometry import heatmap, scaled
from medclip_dcl.evaluation.inputs import BoxedSentence, EncodedImages, EvalResult, Rows
from medclip_dcl.evaluation.metrics import best_ranks, chance_recall
from medclip_dcl.evaluation.retrieval import Direction, box_vectors, rank_directions, rank_samples
from medclip_dcl.models.similarity import region_scores

GALLERY_LENGTHS = (1, 5)
_SHOWN = 5  # gallery sentences of each box that the report shows


def evaluate_grounding(
    model: EvaluatedModel,
    images: EncodedImages,
    units: Sequence[BoxedSentence],
    longest_px: int,
    bootstrap: BootstrapOptions,
) -> tuple[EvalResult, Rows]:
    """Compare the heatmap of each sentence with its boxes, united.

    Args:
        model: who is asked.
        images: the images.
        units: sentences with their boxes; at least one.
        longest_px: longer side of the compared heatmap; smaller images keep their size.
        bootstrap: of the intervals.

    Returns:
        The outcome and the rows of `results.GROUNDINGS`.

    Source: Wang et al. 2023, Section 3.3; Boecking et al. 2022.
    """
    sentences = model.embed_sentences([unit.text for unit in units])
    rows = []
    for unit, sentence in zip(units, sentences, strict=True):
        image = images.regions[unit.image : unit.image + 1]
        grid = region_scores(image, sentence[None])[0, 0].cpu().numpy()
        rows.append(
            {
                "image_id": images.image_ids[unit.image],
                "subject_id": images.subject_ids[unit.image],
                "category": unit.category,
                "phrase_key": unit.key,
                "boxes": len(unit.boxes),
                "rows": grid.shape[0],
                "grid": [float(value) for value in grid.ravel()],
                **_compare(grid, unit, images, longest_px),
            }
        )
    groups = {
        category: _grounding_figures(
            [row for row in rows if row["category"] == category], bootstrap
        )
        for category in sorted({unit.category for unit in units})
    }
    chance = {"pointing": float(np.mean([row["area"] for row in rows])), "cnr_signed": 0.0}
    figures = _grounding_figures(rows, bootstrap)
    return EvalResult("", {"sentences": len(rows)}, chance, figures, groups), rows


def evaluate_boxes(
    model: EvaluatedModel,
    images: EncodedImages,
    units: Sequence[BoxedSentence],
    bootstrap: BootstrapOptions,
) -> tuple[EvalResult, Rows, Rows, Float[Tensor, "boxes dim"]]:
    """Find the sentence of each box among all, and a box of each sentence among all.

    Args:
        model: who is asked.
        images: the images.
        units: sentences with their boxes; at least one.
        bootstrap: of the intervals.

    Returns:
        The outcome, one row per box with what `results.BOX_ANSWERS` needs but for the
        gallery, the rows of `results.RANKS`, and the boxes' vectors. A unit is a box; all
        boxes that one sentence has on one image are its own.

    Source: Wang et al. 2023, Section 3.3 and Table 5.
    """
    rows, shares, owner = _box_rows(images, units)
    device = images.regions.device
    vectors = box_vectors(
        images.regions, torch.tensor(shares, device=device), torch.tensor(owner, device=device)
    )
    keys = np.array([row["phrase_key"] for row in rows])
    distinct, index = np.unique(keys, return_inverse=True)
    text_of = {unit.key: unit.text for unit in units}
    texts = model.embed_sentences([text_of[key] for key in distinct])
    scores = (vectors @ texts.T).cpu().numpy()  # (boxes, distinct sentences)
    each = scores[:, index]  # (boxes, the sentence of each box)
    alike = keys[:, None] == keys[None, :]
    own = alike & (np.array(owner)[:, None] == np.array(owner)[None, :])
    directions = {
        "box_to_sentence": Direction(
            scores, index[:, None] == np.arange(len(distinct))[None, :], each, own
        ),
        "sentence_to_box": Direction(each.T, alike, each.T, own),
    }
    image_ids = [row["image_id"] for row in rows]
    subjects = [row["subject_id"] for row in rows]
    outcome, ranks = rank_directions("boxes", directions, image_ids, subjects, bootstrap)
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

    Args:
        model: who is asked.
        vectors: of the boxes, from `evaluate_boxes`.
        rows: of the boxes; the gallery's columns are filled in.
        sentences: the gallery.
        truth: row of the gallery that is true of each box; None: the gallery has none.
        bootstrap: of the intervals.

    Returns:
        The outcome; boxes without a true sentence are left out of it.

    Source: ours; a closed set of sentences makes chance plain.
    """
    scores = (vectors @ model.embed_sentences(sentences).T).cpu().numpy()
    order = np.argsort(-scores, axis=1, kind="stable")[:, :_SHOWN]
    place_of = {index: index_of for index, index_of in enumerate(truth) if index_of is not None}
    known = list(place_of)
    correct = np.zeros((len(known), len(sentences)), dtype=bool)
    correct[np.arange(len(known)), list(place_of.values())] = True
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


def _compare(
    grid: np.ndarray, unit: BoxedSentence, images: EncodedImages, longest_px: int
) -> dict[str, Any]:
    """Measure one heatmap against its boxes at a bounded size."""
    height, width = images.sizes_px[unit.image]
    shrink = min(1.0, longest_px / max(height, width))
    rows, columns = max(1, round(height * shrink)), max(1, round(width * shrink))
    scale = np.array([columns / width, rows / height, columns / width, rows / height])
    window = scaled(images.window(unit.image), rows / height, columns / width, rows, columns)
    scores = heatmap(grid, images.geometry, window, rows, columns)
    mask = metrics.box_mask(unit.boxes * scale, rows, columns)
    return {
        "cnr": metrics.signed_cnr(scores, mask),
        "miou": metrics.mean_iou(scores, mask, metrics.PAPER_THRESHOLDS),
        "miou_biovil": metrics.mean_iou(scores, mask, metrics.BIOVIL_THRESHOLDS),
        "pointed": metrics.is_pointed_at(scores, mask),
        "area": float(mask.mean()),
    }


def grounding_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Float[np.ndarray, " rows"]]:
    """Give each figure of grounding, row by row of `results.GROUNDINGS`; NaN: undefined."""

    def column(name: str) -> np.ndarray:
        return np.array([row[name] for row in rows], dtype=float)  # None becomes NaN

    signed = column("cnr")
    return {
        "cnr": np.abs(signed),
        "cnr_signed": signed,
        "miou": column("miou"),
        "miou_biovil": column("miou_biovil"),
        "pointing": column("pointed"),
    }


def mean_figures(
    columns: Mapping[str, Sequence[float | None] | Float[np.ndarray, " units"]],
    subjects: Sequence[str],
    bootstrap: BootstrapOptions,
) -> dict[str, Figure]:
    """Average quantities that were measured one unit at a time, where they are not None or NaN."""
    arrays = {name: np.array(values, dtype=float) for name, values in columns.items()}

    def measure(weights: Weights) -> dict[str, Samples]:
        return {name: metrics.mean(values, weights) for name, values in arrays.items()}

    return estimate(measure, subjects, bootstrap, "undefined for every unit")


def _grounding_figures(
    rows: Sequence[Mapping[str, Any]], bootstrap: BootstrapOptions
) -> dict[str, Figure]:
    return mean_figures(grounding_columns(rows), [row["subject_id"] for row in rows], bootstrap)


def _box_rows(
    images: EncodedImages, units: Sequence[BoxedSentence]
) -> tuple[Rows, list[list[float]], list[int]]:
    """One row per box, its place as shares of what the model sees, and its image's number."""
    rows: Rows = []
    shares, owner = [], []
    for unit in units:
        seen = images.window(unit.image)
        for x, y, across, down in unit.boxes.tolist():
            rows.append(
                {
                    "image_id": images.image_ids[unit.image],
                    "subject_id": images.subject_ids[unit.image],
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
            shares.append(
                [
                    (x - seen.x) / seen.width,
                    (y - seen.y) / seen.height,
                    across / seen.width,
                    down / seen.height,
                ]
            )
            owner.append(unit.image)
    return rows, shares, owner
