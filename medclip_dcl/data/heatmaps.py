"""A grid of scores on an image: where its cells are, and the picture of it.

The whole image is stretched onto the model's input, so cell (row i, column j) of an R x C grid
covers the rectangle [j W/C, (j+1) W/C) x [i H/R, (i+1) H/R) of an H x W image. Pixel (y, x)
covers [x, x + 1) x [y, y + 1), as boxes are measured.
"""

from collections.abc import Sequence

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
