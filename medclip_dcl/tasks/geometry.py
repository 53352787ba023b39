"""Where on the film the grid of regions lies: all of it, or BioViL's central crop.

Pixel (y, x) covers [x, x + 1) x [y, y + 1), as boxes are measured.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, UInt8
from scipy import ndimage

from medclip_dcl.tasks.grounding import axis_weights, upsample

Geometry = Literal["paper", "biovil"]

BIOVIL_RESIZE_PX, BIOVIL_CROP_PX = 512, 480
"""BioViL brings the shorter side to the first and crops the centre to the second."""

BIOVIL_SMOOTHING = 1.5
"""Deviation of the Gaussian by which BioViL smooths its grid of scores, cells."""


@dataclass(frozen=True)
class Window:
    """The part of a film that the model sees; pixels of the film, whole numbers."""

    x: int
    y: int
    width: int
    height: int


def window_of(geometry: Geometry, height_px: int, width_px: int) -> Window:
    """Give the part of a film that a geometry shows to the model.

    Args:
        geometry: `paper`, the whole film; `biovil`, a central square of 480/512 of the
            shorter side.
        height_px: height of the film.
        width_px: width of the film.

    Returns:
        The window; a margin that cannot be halved is wider at the right and the bottom.

    Source: Boecking et al. 2022, as hi-ml's inference engine rounds.
    """
    if geometry == "paper":
        return Window(0, 0, width_px, height_px)
    side = max(1, int(BIOVIL_CROP_PX * min(height_px, width_px) / BIOVIL_RESIZE_PX))
    return Window((width_px - side) // 2, (height_px - side) // 2, side, side)


def cut(
    film: UInt8[np.ndarray, "size size"], window: Window, height_px: int, width_px: int
) -> UInt8[np.ndarray, "size size"]:
    """Cut a window out of a prepared film, which shows the whole film as a square.

    Args:
        film: the prepared film.
        window: part of the original film.
        height_px: height of the original film.
        width_px: width of the original film.

    Returns:
        The window, stretched to the same square by bilinear interpolation.
    """
    if window == Window(0, 0, width_px, height_px):
        return film
    size = len(film)
    down = _section(window.y / height_px, window.height / height_px, size)
    across = _section(window.x / width_px, window.width / width_px, size)
    pixels: np.ndarray = np.rint(down @ film.astype(np.float32) @ across.T).astype(np.uint8)
    return pixels


def heatmap(
    grid: Float[np.ndarray, "rows columns"],
    geometry: Geometry,
    window: Window,
    height_px: int,
    width_px: int,
) -> Float[np.ndarray, "height width"]:
    """Spread a grid of scores over the film.

    Args:
        grid: one score per cell of the window.
        geometry: `biovil` smooths the grid first.
        window: where the grid lies, within the film.
        height_px: height of the film.
        width_px: width of the film.

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
    """Bring a window to another size of its film.

    Args:
        window: on the film.
        down: factor of heights.
        across: factor of widths.
        height_px: height of the new film.
        width_px: width of the new film.

    Returns:
        The window on the new film, rounded, at least a pixel and within it.
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
