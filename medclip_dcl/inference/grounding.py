"""Grounding: where on the image a sentence is answered; `data.heatmaps` has the geometry."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from scipy import ndimage

from medclip_dcl.data.heatmaps import grid_affine, upsample

_FINE = 8  # steps per cell at which a box's edge is traced
_ROUNDING = 1e-6  # of interpolated cosines, float32


@dataclass(frozen=True)
class Peak:
    """The best point: pixels of the image, and its score in [-1, 1]."""

    x: float
    y: float
    score: float


@dataclass(frozen=True)
class Box:
    """A rectangle, pixels of the image."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Grounding:
    """Heatmap of one sentence on one image, with its peak and box."""

    grid: Float[np.ndarray, "rows columns"]
    """Region-sentence cosines."""
    affine: tuple[float, float, float, float, float, float]
    """(a, b, c, d, e, f): cell (row, column) has its centre at x = a column + b row + c,
    y = d column + e row + f, pixels of the image."""
    peak: Peak
    """Centre of the best cell."""
    threshold: float
    """Score from which the box is traced."""
    box: Box | None
    """Smallest rectangle around what is connected to the peak and scores at least the threshold;
    None where the peak is below it."""
    percentile: float | None = None
    """Share of the images in the model's bank whose score with the sentence is lower, %; None: not
    asked, or no bank."""


@dataclass(frozen=True)
class PhraseGrids:
    """Scores of the regions of one image for every phrase."""

    grids: Float[np.ndarray, "phrases rows columns"]
    """Region-sentence cosines."""
    percentiles: tuple[float | None, ...]
    """`Grounding.percentile` of each phrase."""

    def locate(self, height_px: int, width_px: int, threshold: float | None) -> list[Grounding]:
        """Turn every grid into a grounding on the image: `locate`."""
        return [
            replace(locate(grid, height_px, width_px, threshold), percentile=share)
            for grid, share in zip(self.grids, self.percentiles, strict=True)
        ]


def locate(
    grid: Float[np.ndarray, "rows columns"],
    height_px: int,
    width_px: int,
    threshold: float | None,
) -> Grounding:
    """Turn a grid of scores into a peak and a box on the image.

    Args:
        grid: region-sentence cosines of one image and one sentence.
        height_px: height of the image.
        width_px: width of the image.
        threshold: score from which the box is traced; None: half way between the
            grid's mean and its peak.

    Returns:
        The grounding. The peak is a cell's centre: bilinear scores never exceed those
        at the centres.
    """
    rows, columns = grid.shape
    affine = grid_affine(rows, columns, height_px, width_px)
    row, column = np.unravel_index(int(grid.argmax()), grid.shape)
    best = float(grid[row, column])
    peak = Peak(affine[0] * column + affine[2], affine[4] * row + affine[5], best)
    level = (float(grid.mean()) + best) / 2 if threshold is None else threshold
    box = _box_around(grid, int(row), int(column), level) if best >= level else None
    if box is not None:
        box = Box(
            box.x * affine[0], box.y * affine[4], box.width * affine[0], box.height * affine[4]
        )
    return Grounding(grid, affine, peak, level, box)


def _box_around(grid: np.ndarray, row: int, column: int, level: float) -> Box:
    """Trace what is connected to a cell's centre and reaches the level, in cells."""
    rows, columns = grid.shape
    fine = upsample(grid, rows * _FINE, columns * _FINE)
    centre = (slice(row * _FINE, (row + 1) * _FINE), slice(column * _FINE, (column + 1) * _FINE))
    label, _ = ndimage.label(fine >= level - _ROUNDING)
    near = fine[centre].argmax()
    own = label[centre].ravel()[near]
    if own == 0:  # a peak thinner than one step
        return Box(column, row, 1, 1)
    ys, xs = np.nonzero(label == own)
    x, y = xs.min() / _FINE, ys.min() / _FINE
    return Box(x, y, (xs.max() + 1) / _FINE - x, (ys.max() + 1) / _FINE - y)
