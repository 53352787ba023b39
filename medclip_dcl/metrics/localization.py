"""Heatmap against box: contrast-to-noise ratio, mean IoU and the pointing game.

A heatmap may hold NaN where the model saw nothing (a crop's margin); such pixels are
left out of every figure. Pixel (row, column) covers [column, column + 1) x [row, row + 1)
and belongs to a box that contains its centre.
"""

import numpy as np
from jaxtyping import Bool, Float

from medclip_dcl.errors import MetricError

PAPER_THRESHOLDS: tuple[float, ...] = tuple(step * 0.05 for step in range(-20, 21))
"""-1 to 1 in 41 steps, each an integer times 0.05, so that no error accumulates."""

BIOVIL_THRESHOLDS: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Thresholds of the BioViL-style variant; its clamp at 0 changes nothing above 0."""


def box_mask(
    boxes: Float[np.ndarray, "boxes 4"], height_px: int, width_px: int
) -> Bool[np.ndarray, "height width"]:
    """Mark the union of boxes.

    Args:
        boxes: x, y, width, height of each, pixels.
        height_px: height of the film.
        width_px: width of the film.

    Returns:
        True for every pixel whose centre lies in at least one box.
    """
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
    """Contrast-to-noise ratio: how far the inside of the boxes stands out, in deviations.

    Args:
        heatmap: scores; NaN where there is none.
        mask: union of the boxes.

    Returns:
        (mean inside - mean outside) / sqrt(variance inside + variance outside), with
        population variances; positive where the inside scores higher. The figure that
        papers report is its absolute value. None where the inside or the outside is
        empty, or where the heatmap is constant on both.

    Raises:
        MetricError: heatmap and mask differ in shape.

    Source: Boecking et al. 2022 (BioViL), Section 5; ours: the sign, NaN left out.
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
    thresholds: tuple[float, ...],
) -> float | None:
    """Overlap of the thresholded heatmap with the boxes, averaged over thresholds.

    Args:
        heatmap: scores, in [-1, 1]; NaN where there is none.
        mask: union of the boxes.
        thresholds: `PAPER_THRESHOLDS` or `BIOVIL_THRESHOLDS`; the two are not comparable.

    Returns:
        Mean IoU in [0, 1], 0 at a threshold where the union is empty; None where no
        pixel has a score.

    Raises:
        MetricError: heatmap and mask differ in shape.

    Source: Wang et al. 2023, Section 3.3.
    """
    values, inside = _scored(heatmap, mask)
    if len(values) == 0:
        return None
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
    """Pointing game: whether the highest score lies in a box.

    Args:
        heatmap: scores; NaN where there is none.
        mask: union of the boxes.

    Returns:
        True where every pixel that attains the maximum is inside (a tie with the outside
        is a miss); None where no pixel has a score.

    Raises:
        MetricError: heatmap and mask differ in shape.

    Source: Zhang et al. 2018 (excitation backprop); ours: ties are misses.
    """
    values, inside = _scored(heatmap, mask)
    if len(values) == 0:
        return None
    return bool(inside[values == values.max()].all())


def _scored(heatmap: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if heatmap.shape != mask.shape:
        raise MetricError(
            f"heatmap {heatmap.shape} and mask {mask.shape} differ; upsample to the film's size"
        )
    valid = ~np.isnan(heatmap)
    if valid.all():
        return heatmap.ravel(), mask.ravel()
    return heatmap[valid], mask[valid]
