"""The part of an image that a model sees: all of it, or BioViL's central crop.

Pixel (y, x) covers [x, x + 1) x [y, y + 1), as boxes are measured.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, UInt8
from scipy import ndimage

from medclip_dcl.inference import axis_weights, upsample

Geometry = Literal["paper", "biovil"]

_BIOVIL_RESIZE_PX, _BIOVIL_CROP_PX = 512, 480  # the shorter side is resized, the centre is cropped
_BIOVIL_SMOOTHING = 1.5  # deviation of the Gaussian that smooths the grid of scores, cells


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
    side = max(1, int(_BIOVIL_CROP_PX * min(height_px, width_px) / _BIOVIL_RESIZE_PX))
    return Window((width_px - side) // 2, (height_px - side) // 2, side, side)


def cut(
    image: UInt8[np.ndarray, "size size"], window: Window, height_px: int, width_px: int
) -> UInt8[np.ndarray, "size size"]:
    """Cut a window of the original image out of the prepared one, a square that shows all of it.

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
    """Spread a window's grid of scores over the image; `biovil` smooths the grid first.

    Returns:
        One score per pixel, bilinear between the centres of cells; not a number where the
        model saw nothing.

    Source: Boecking et al. 2022, as hi-ml's inference engine does it.
    """
    if geometry == "biovil":
        grid = ndimage.gaussian_filter(grid, sigma=_BIOVIL_SMOOTHING)
    spread = np.full((height_px, width_px), np.nan, dtype=np.float32)
    seen = upsample(grid, window.height, window.width)
    spread[window.y : window.y + window.height, window.x : window.x + window.width] = seen
    return spread


def scaled(window: Window, down: float, across: float, height_px: int, width_px: int) -> Window:
    """Bring a window to another size of its image: heights times `down`, widths times `across`.

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
    return axis_weights((start + (np.arange(size) + 0.5) / size * length) * size - 0.5, size)
