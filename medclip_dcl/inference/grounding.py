"""Grounding: where on the image a sentence is answered, and the picture of it.

The whole image is stretched onto the model's input, so cell (row i, column j) of an R x C grid
covers the rectangle [j W/C, (j+1) W/C) x [i H/R, (i+1) H/R) of an H x W image. Pixel (y, x)
covers [x, x + 1) x [y, y + 1), as boxes are measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from jaxtyping import Float, UInt8
from PIL import Image

from medclip_dcl.data.grayscale import GreyImage

LONGEST_PX = 1024
"""Longest side of a picture that is drawn here."""

_OPACITY = 0.55
_EVEN = 1e-3  # scores this close to the mean are shown as weak as they are
_HEAT = np.array(
    [[0, 0, 0], [68, 1, 84], [187, 55, 84], [249, 142, 9], [252, 255, 164]], dtype=np.float32
)
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
    from scipy import ndimage  # who draws heat alone has no scipy

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


def grid_affine(
    rows: int, columns: int, height_px: int, width_px: int
) -> tuple[float, float, float, float, float, float]:
    """Map cells of a grid to the centres of their rectangles, as `Grounding.affine` explains."""
    cell_width, cell_height = width_px / columns, height_px / rows
    return (cell_width, 0.0, cell_width / 2, 0.0, cell_height, cell_height / 2)


def upsample(
    grid: Float[np.ndarray, "rows columns"], height_px: int, width_px: int
) -> Float[np.ndarray, "height width"]:
    """Spread a grid over an image, bilinear between the centres of cells, corners not aligned."""
    down = _spread(grid.shape[0], height_px)
    across = _spread(grid.shape[1], width_px)
    heatmap: np.ndarray = down @ grid.astype(np.float32) @ across.T
    return heatmap


def axis_weights(
    position: Float[np.ndarray, " positions"], cells: int
) -> Float[np.ndarray, "positions cells"]:
    """Weigh cells, whose centres are at 0, 1, 2, ..., at positions along one axis; a row sums to 1.

    Bilinear interpolation is separable; beyond the outer centres their values go on.
    """
    away = np.abs(position.clip(0, cells - 1)[:, None] - np.arange(cells))
    weights: np.ndarray = (1 - away).clip(min=0).astype(np.float32)
    return weights


def _spread(cells: int, pixels: int) -> np.ndarray:
    return axis_weights((np.arange(pixels) + 0.5) * (cells / pixels) - 0.5, cells)


def draw_heat(
    image: GreyImage, grids: Sequence[Float[np.ndarray, "rows columns"]]
) -> UInt8[np.ndarray, "height width 3"]:
    """Draw grids of scores onto an image, its longer side at most `LONGEST_PX`.

    Of several grids the strongest share counts at each pixel; without any the image is grey.
    """
    height, width = image.pixels.shape
    scale = min(1.0, LONGEST_PX / max(height, width))
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    grey8 = Image.fromarray((image.pixels >> 8).astype(np.uint8))
    grey = np.asarray(grey8.resize((size[1], size[0]), Image.Resampling.BILINEAR))
    share = np.zeros(size, dtype=np.float32)
    for grid in grids:
        heat = upsample(grid, *size)
        # scores above the image's mean, as shares of the highest; none where all are alike
        above = np.clip(heat - heat.mean(), 0, None)
        share = np.maximum(share, np.asarray(above / max(float(above.max()), _EVEN), np.float32))
    opacity = (_OPACITY * share)[..., None]
    mixed = (1 - opacity) * grey[..., None] + opacity * _coloured(share)
    return np.asarray(mixed.round(), dtype=np.uint8)


def _coloured(heat: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    stops = np.linspace(0, 1, len(_HEAT))
    channels = [np.interp(heat, stops, _HEAT[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).astype(np.float32)
