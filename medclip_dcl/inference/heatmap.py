"""Grounding: where on the image a sentence is answered.

Geometry `paper`: the whole image is stretched onto the model's input, so cell (row i,
column j) of an R x C grid covers the rectangle [j W/C, (j+1) W/C) x [i H/R, (i+1) H/R) of
an H x W image. Pixel (y, x) covers [x, x + 1) x [y, y + 1), as boxes are measured.

Where on the image the grid of regions is: all of it, or BioViL's central crop.

Pixel (y, x) covers [x, x + 1) x [y, y + 1), as boxes are measured.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, UInt8
from scipy import ndimage

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
    """Where one sentence is answered on one image.

    Attributes:
        grid: region-sentence cosines, (rows, columns).
        affine: (a, b, c, d, e, f): cell (row, column) has its centre at
            x = a column + b row + c, y = d column + e row + f, pixels of the image.
        peak: centre of the best cell.
        threshold: score from which the box is traced.
        box: smallest rectangle around what is connected to the peak and scores at least
            the threshold; None where the peak is below it.
    """

    grid: Float[np.ndarray, "rows columns"]
    affine: tuple[float, float, float, float, float, float]
    peak: Peak
    threshold: float
    box: Box | None


def grid_affine(
    rows: int, columns: int, height_px: int, width_px: int
) -> tuple[float, float, float, float, float, float]:
    """Give the map from cells to the centres of their rectangles on the image.

    Args:
        rows: of the grid.
        columns: of the grid.
        height_px: height of the image.
        width_px: width of the image.

    Returns:
        (a, b, c, d, e, f), as `Grounding.affine` explains.
    """
    cell_width, cell_height = width_px / columns, height_px / rows
    return (cell_width, 0.0, cell_width / 2, 0.0, cell_height, cell_height / 2)


def upsample(
    grid: Float[np.ndarray, "rows columns"], height_px: int, width_px: int
) -> Float[np.ndarray, "height width"]:
    """Spread a grid of scores over the image.

    Args:
        grid: one score per cell.
        height_px: height of the image.
        width_px: width of the image.

    Returns:
        One score per pixel, bilinear between the centres of cells (corners not aligned).
    """
    down = _spread(grid.shape[0], height_px)
    across = _spread(grid.shape[1], width_px)
    heatmap: np.ndarray = down @ grid.astype(np.float32) @ across.T
    return heatmap


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


def axis_weights(
    position: Float[np.ndarray, " places"], cells: int
) -> Float[np.ndarray, "places cells"]:
    """Give the weight of each cell at each place: bilinear interpolation along one axis.

    Args:
        position: places; cell i has its centre at i.
        cells: how many there are; beyond the outer centres their values go on.

    Returns:
        Weights, each row's sum 1; bilinear interpolation is separable.
    """
    away = np.abs(position.clip(0, cells - 1)[:, None] - np.arange(cells))
    weights: np.ndarray = (1 - away).clip(min=0).astype(np.float32)
    return weights


def _spread(cells: int, pixels: int) -> np.ndarray:
    """Weight of each cell in each pixel along one axis."""
    return axis_weights((np.arange(pixels) + 0.5) * (cells / pixels) - 0.5, cells)


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


Geometry = Literal["paper", "biovil"]

BIOVIL_RESIZE_PX, BIOVIL_CROP_PX = 512, 480
"""BioViL brings the shorter side to the first and crops the centre to the second."""

BIOVIL_SMOOTHING = 1.5
"""Deviation of the Gaussian by which BioViL smooths its grid of scores, cells."""


@dataclass(frozen=True)
class Window:
    """The part of an image that the model sees; pixels of the image, whole numbers."""

    x: int
    y: int
    width: int
    height: int


def window_of(geometry: Geometry, height_px: int, width_px: int) -> Window:
    """Give the part of an image that a geometry shows to the model.

    Args:
        geometry: `paper`, the whole image; `biovil`, a central square of 480/512 of the
            shorter side.
        height_px: height of the image.
        width_px: width of the image.

    Returns:
        The window; a margin that cannot be halved is wider at the right and the bottom.

    Source: Boecking et al. 2022, as hi-ml's inference engine rounds.
    """
    if geometry == "paper":
        return Window(0, 0, width_px, height_px)
    side = max(1, int(BIOVIL_CROP_PX * min(height_px, width_px) / BIOVIL_RESIZE_PX))
    return Window((width_px - side) // 2, (height_px - side) // 2, side, side)


def cut(
    image: UInt8[np.ndarray, "size size"], window: Window, height_px: int, width_px: int
) -> UInt8[np.ndarray, "size size"]:
    """Cut a window out of a prepared image, which shows the whole image as a square.

    Args:
        image: the prepared image.
        window: part of the original image.
        height_px: height of the original image.
        width_px: width of the original image.

    Returns:
        The window, stretched to the same square by bilinear interpolation.
    """
    if window == Window(0, 0, width_px, height_px):
        return image
    size = len(image)
    down = _section(window.y / height_px, window.height / height_px, size)
    across = _section(window.x / width_px, window.width / width_px, size)
    pixels: np.ndarray = np.rint(down @ image.astype(np.float32) @ across.T).astype(np.uint8)
    return pixels


def heatmap(
    grid: Float[np.ndarray, "rows columns"],
    geometry: Geometry,
    window: Window,
    height_px: int,
    width_px: int,
) -> Float[np.ndarray, "height width"]:
    """Spread a grid of scores over the image.

    Args:
        grid: one score per cell of the window.
        geometry: `biovil` smooths the grid first.
        window: position of the grid on the image.
        height_px: height of the image.
        width_px: width of the image.

    Returns:
        One score per pixel, bilinear between the centres of cells; not a number where the
        model saw nothing.

    Source: Boecking et al. 2022, as hi-ml's inference engine does it.
    """
    if geometry == "biovil":
        grid = ndimage.gaussian_filter(grid, sigma=BIOVIL_SMOOTHING)
    spread = np.full((height_px, width_px), np.nan, dtype=np.float32)
    seen = upsample(grid, window.height, window.width)
    spread[window.y : window.y + window.height, window.x : window.x + window.width] = seen
    return spread


def scaled(window: Window, down: float, across: float, height_px: int, width_px: int) -> Window:
    """Bring a window to another size of its image.

    Args:
        window: on the image.
        down: factor of heights.
        across: factor of widths.
        height_px: height of the new image.
        width_px: width of the new image.

    Returns:
        The window on the new image, rounded, at least a pixel and within it.
    """
    x, y = (
        min(round(start * factor), limit - 1)
        for start, factor, limit in ((window.x, across, width_px), (window.y, down, height_px))
    )
    width = min(max(1, round(window.width * across)), width_px - x)
    return Window(x, y, width, min(max(1, round(window.height * down)), height_px - y))


def _section(start: float, length: float, size: int) -> np.ndarray:
    """Weights of a section's pixels, both axes of `size`, the section given as shares."""
    position = (start + (np.arange(size) + 0.5) / size * length) * size - 0.5
    return axis_weights(position, size)
