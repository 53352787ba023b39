"""Grounding: is the heatmap of a sentence in its boxes?

A heatmap may hold NaN where the model saw nothing (a crop's margin); such pixels are left out.
Pixel (row, column) covers [column, column + 1) x [row, row + 1) and belongs to a box that
contains its centre.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from medclip_dcl.core.errors import MetricError
from medclip_dcl.evaluation import metrics
from medclip_dcl.evaluation.evaluated_model import EncodedImages, EvaluatedModel
from medclip_dcl.evaluation.results import EvalResult, Rows
from medclip_dcl.inference.grounding import outside, scaled, upsample
from medclip_dcl.models.similarity import score_grids

PAPER_THRESHOLDS: tuple[float, ...] = tuple(step * 0.05 for step in range(-20, 21))
"""-1 to 1 in 41 steps, each an integer times 0.05, so that no error accumulates."""

HEATMAP_PX = 1024  # longer side at which heatmaps meet boxes; smaller images keep their size

_DRAWS = 5  # heatmaps of other images that each sentence's boxes meet
_CHANCE_PX = 256  # their longer side: CNR hardly depends on it


def box_mask(
    boxes: Float[np.ndarray, "boxes 4"], height_px: int, width_px: int
) -> Bool[np.ndarray, "height width"]:
    """Mark every pixel whose centre is in one of the boxes: x, y, width, height, pixels."""
    rows, columns = np.arange(height_px) + 0.5, np.arange(width_px) + 0.5
    mask = np.zeros((height_px, width_px), dtype=bool)
    for x, y, width, height in boxes:
        inside_rows = (rows >= y) & (rows < y + height)
        inside_columns = (columns >= x) & (columns < x + width)
        mask |= inside_rows[:, None] & inside_columns[None, :]
    return mask


def signed_cnr(
    heatmap: Float[np.ndarray, "height width"], mask: Bool[np.ndarray, "height width"]
) -> float | None:
    """Contrast-to-noise ratio: how far the inside of the boxes stands out, in standard deviations.

    (mean inside - mean outside) / sqrt(variance inside + variance outside), with population
    variances; positive where the inside scores higher. What papers report as CNR is its
    absolute value; `chance_cnr` gives its level of chance. None where the inside or the outside is
    empty, or the heatmap constant on both.

    Source: Boecking et al. 2022 (BioViL); ours: the sign, NaN left out.
    """
    values, inside = _scored(heatmap, mask)
    within, without = values[inside], values[~inside]
    if len(within) == 0 or len(without) == 0:
        return None
    noise = within.var(dtype=np.float64) + without.var(dtype=np.float64)
    contrast = within.mean(dtype=np.float64) - without.mean(dtype=np.float64)
    return float(contrast / np.sqrt(noise)) if noise > 0 else None


def mean_iou(
    heatmap: Float[np.ndarray, "height width"],
    mask: Bool[np.ndarray, "height width"],
    thresholds: tuple[float, ...] = PAPER_THRESHOLDS,
) -> float | None:
    """Overlap of the thresholded heatmap with the boxes, averaged over thresholds.

    The IoU counts as 0 at a threshold where the union is empty; None where no pixel has a score.
    Figures of other thresholds, such as BioViL's .1 to .5, are not comparable.

    Source: Wang et al. 2023, Section 3.2.
    """
    values, inside = _scored(heatmap, mask)
    if len(values) == 0:
        return None
    # Counting what is above a threshold gives overlap and union without a mask for each.
    within = values[inside]
    total = 0.0
    for threshold in thresholds:
        overlap = int(np.count_nonzero(within >= threshold))
        union = int(np.count_nonzero(values >= threshold)) + len(within) - overlap
        total += overlap / union if union else 0.0
    return total / len(thresholds)


def is_pointed_at(
    heatmap: Float[np.ndarray, "height width"], mask: Bool[np.ndarray, "height width"]
) -> bool | None:
    """Pointing game: whether the highest score is in a box; None where no pixel has a score.

    Every pixel that attains the maximum must be inside: a tie with the outside is a miss.

    Source: Zhang et al. 2018 (excitation backprop); ours: ties are misses.
    """
    values, inside = _scored(heatmap, mask)
    if len(values) == 0:
        return None
    return bool(inside[values == values.max()].all())


def _scored(heatmap: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if heatmap.shape != mask.shape:
        raise MetricError(
            f"heatmap {heatmap.shape} and mask {mask.shape} differ; upsample to the image's size"
        )
    valid = ~np.isnan(heatmap)
    if valid.all():
        return heatmap.ravel(), mask.ravel()
    return heatmap[valid], mask[valid]


@dataclass(frozen=True)
class BoxedSentence:
    """A sentence with the boxes that it has on one image; `image` is the image's number."""

    image: int
    category: str
    text: str
    key: str
    boxes: Float[np.ndarray, "boxes 4"]
    """x, y, width, height, pixels of the original image."""


def boxed_sentences(
    boxes: Sequence[Mapping[str, Any]], images: EncodedImages, keys: Sequence[str]
) -> list[BoxedSentence]:
    """Gather the boxes of each sentence on each image, in order of first appearance.

    `boxes` are rows of the manifest's box table, `keys` the `text_key` of each row's phrase. Boxes
    are scaled from the size that the table states to the image's own.
    """
    number = {image_id: index for index, image_id in enumerate(images.image_ids)}
    rows_of: dict[tuple[int, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row, key in zip(boxes, keys, strict=True):
        if row["image_id"] in number and row["phrase"].strip():
            rows_of[number[row["image_id"]], key].append(row)
    return [
        BoxedSentence(
            image=image,
            category=rows[0]["category"],
            text=rows[0]["phrase"],
            key=key,
            boxes=np.array([_scaled(row, images.sizes_px[image]) for row in rows]),
        )
        for (image, key), rows in rows_of.items()
    ]


def _scaled(row: Mapping[str, Any], size_px: tuple[int, int]) -> list[float]:
    height, width = size_px
    across, down = width / (row["image_width"] or width), height / (row["image_height"] or height)
    return [row["x"] * across, row["y"] * down, row["width"] * across, row["height"] * down]


def evaluate_grounding(
    model: EvaluatedModel,
    images: EncodedImages,
    units: Sequence[BoxedSentence],
    longest_px: int,
    bootstrap: metrics.BootstrapOptions,
) -> tuple[EvalResult, Rows]:
    """Compare the heatmap of each sentence, at least one, with its boxes, united.

    Heatmaps are compared with a longer side of `longest_px`; smaller images keep their size.

    Source: Wang et al. 2023, Section 3.2; Boecking et al. 2022.
    """
    sentences = model.embed_sentences([unit.text for unit in units])
    rows = []
    for unit, sentence in zip(units, sentences, strict=True):
        image = images.regions[unit.image : unit.image + 1].to(sentence.device).float()
        grid = score_grids(image, sentence[None], model.similarity)[0, 0]
        scores, mask = _on_image(grid, unit, images, longest_px)
        rows.append(
            {
                **images.ids_of(unit.image),
                "category": unit.category,
                "phrase_key": unit.key,
                "boxes": len(unit.boxes),
                "rows": grid.shape[0],
                "grid": [float(value) for value in grid.ravel()],
                "cnr_signed": signed_cnr(scores, mask),
                "miou": mean_iou(scores, mask),
                "pointed": is_pointed_at(scores, mask),
                "area": float(mask.mean()),
            }
        )

    def estimated(chosen: Rows) -> dict[str, metrics.Figure]:
        return metrics.estimate(
            lambda weights: measure_grounding(chosen, weights),
            [row["subject_id"] for row in chosen],
            bootstrap,
            "undefined for every unit",
        )

    groups = {
        category: estimated([row for row in rows if row["category"] == category])
        for category in sorted({unit.category for unit in units})
    }
    chance = {
        "pointing": float(np.mean([row["area"] for row in rows])),
        **chance_cnr(rows, units, images, bootstrap.generator()),
    }
    return EvalResult("", {"sentences": len(rows)}, chance, estimated(rows), groups), rows


def chance_cnr(
    rows: Rows,
    units: Sequence[BoxedSentence],
    images: EncodedImages,
    generator: np.random.Generator,
) -> dict[str, float | None]:
    """Measure `cnr` and `cnr_signed` of heatmaps that belong to other images.

    Every sentence's boxes meet the heatmaps of sentences of other images, drawn at random. What
    the same model's heatmaps give so, absolute, is the zero of CNR: it is far above 0, as smooth
    heatmaps always differ between two parts of an image. None where all are of one image.

    Source: ours; a permutation of images.
    """
    owner = np.array([unit.image for unit in units])
    contrasts = []
    for unit in units:
        others = np.flatnonzero(owner != unit.image)
        for other in generator.choice(others, min(_DRAWS, len(others)), replace=False):
            grid = np.array(rows[other]["grid"], dtype=np.float32).reshape(rows[other]["rows"], -1)
            scores, mask = _on_image(grid, unit, images, _CHANCE_PX)
            contrasts.append(signed_cnr(scores, mask))
    defined = np.array([value for value in contrasts if value is not None])
    if not len(defined):
        return {"cnr": None, "cnr_signed": None}
    return {"cnr": float(np.abs(defined).mean()), "cnr_signed": float(defined.mean())}


def _on_image(
    grid: np.ndarray, unit: BoxedSentence, images: EncodedImages, longest_px: int
) -> tuple[np.ndarray, np.ndarray]:
    # A grid as the heatmap of the unit's image, and the unit's boxes, at a bounded size: 41
    # thresholds over the pixels of an original image would take seconds.
    height, width = images.sizes_px[unit.image]
    shrink = min(1.0, longest_px / max(height, width))
    rows, columns = max(1, round(height * shrink)), max(1, round(width * shrink))
    scale = np.array([columns / width, rows / height, columns / width, rows / height])
    shown = scaled(images.window(unit.image), rows / height, columns / width)
    scores = upsample(grid, rows, columns, shown)
    scores[outside(rows, columns, shown)] = np.nan
    return scores, box_mask(unit.boxes * scale, rows, columns)


def measure_grounding(
    rows: Sequence[Mapping[str, Any]], weights: metrics.Weights
) -> dict[str, metrics.Samples]:
    """Average each figure over rows of `results.GROUNDINGS`, those without it left out."""
    signed, miou, pointed = (
        np.array([row[name] for row in rows], dtype=float)  # None becomes NaN
        for name in ("cnr_signed", "miou", "pointed")
    )
    columns = {"cnr": np.abs(signed), "cnr_signed": signed, "miou": miou, "pointing": pointed}
    return {name: metrics.mean(values, weights) for name, values in columns.items()}
