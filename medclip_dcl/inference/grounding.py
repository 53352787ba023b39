"""Grounding: where on the image a sentence is answered, and the picture of it.

The model's input shows a window of the image, all of it but for public checkpoints that crop or
pad. Cell (row i, column j) of an R x C grid covers the rectangle
[x + j W/C, x + (j+1) W/C) x [y + i H/R, y + (i+1) H/R) of a window at (x, y), H high and W wide.
Pixel (y, x) covers [x, x + 1) x [y, y + 1), as boxes are measured.
"""

import io
from base64 import b64encode
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, UInt8
from PIL import Image

from medclip_dcl.data.grayscale import GreyImage, SquareImage, Window
from medclip_dcl.schemas import PhraseAnswer, Point, Rectangle

LONGEST_PX = 1024  # longest side of a picture that is drawn here

_SHOWN_PX = 320  # longest side of a picture of a notebook
_OPACITY = 0.55
_EVEN = 1e-3  # scores this close to the mean are shown as weak as they are
_HEAT = np.array(
    [[0, 0, 0], [68, 1, 84], [187, 55, 84], [249, 142, 9], [252, 255, 164]], dtype=np.float32
)
_FINE = 8  # steps per cell at which a box's edge is traced
_DIGITS = 5  # of the scores of a grid
_ROUNDING = 1e-6  # of interpolated cosines, float32


class PhraseGrids(NamedTuple):
    """Scores of the regions of one image for every phrase."""

    grids: Float[np.ndarray, "phrases rows columns"]
    """Region-sentence cosines."""
    percentiles: Sequence[float | None]
    """`PhraseAnswer.percentile` of each phrase."""


def locate(
    grid: Float[np.ndarray, "rows columns"],
    height_px: int,
    width_px: int,
    threshold: float | None,
    shown: Window | None = None,
    percentile: float | None = None,
) -> PhraseAnswer:
    """Turn a grid of scores into a peak and a box on the image.

    Args:
        grid: region-sentence cosines of one image and one sentence.
        height_px: height of the image.
        width_px: width of the image.
        threshold: score from which the box is traced; None: half way between the
            grid's mean and its peak.
        shown: part of the image that the grid covers; None: all.
        percentile: that of the answer.

    Returns:
        The answer. The peak is a cell's centre: bilinear scores never exceed those
        at the centres.
    """
    rows, columns = grid.shape
    shown = shown or Window(0, 0, width_px, height_px)
    affine = grid_affine(rows, columns, shown)
    row, column = np.unravel_index(int(grid.argmax()), grid.shape)
    best = float(grid[row, column])
    x, y = affine[0] * column + affine[2], affine[4] * row + affine[5]
    level = (float(grid.mean()) + best) / 2 if threshold is None else threshold
    box = _box_around(grid, int(row), int(column), level) if best >= level else None
    if box is not None:  # what is in a pad is cut off
        x0, y0 = (max(0.0, at) for at in (shown.x + box.x * affine[0], shown.y + box.y * affine[4]))
        x1 = min(float(width_px), shown.x + (box.x + box.width) * affine[0])
        y1 = min(float(height_px), shown.y + (box.y + box.height) * affine[4])
        box = None if x1 <= x0 or y1 <= y0 else _rectangle(x0, y0, x1 - x0, y1 - y0)
    rounded: list[list[float]] = grid.astype(float).round(_DIGITS).tolist()
    return PhraseAnswer(
        grid=rounded,
        affine=affine,
        peak=Point(x=x, y=y, score=best),
        threshold=level,
        box=box,
        percentile=percentile,
    )


def _box_around(grid: np.ndarray, row: int, column: int, level: float) -> Rectangle:
    """Trace what is connected to a cell's centre and reaches the level, in cells."""
    from scipy import ndimage  # who draws heat alone has no scipy

    rows, columns = grid.shape
    fine = upsample(grid, rows * _FINE, columns * _FINE)
    centre = (slice(row * _FINE, (row + 1) * _FINE), slice(column * _FINE, (column + 1) * _FINE))
    label, _ = ndimage.label(fine >= level - _ROUNDING)
    near = fine[centre].argmax()
    own = label[centre].ravel()[near]
    if own == 0:  # a peak thinner than one step
        return _rectangle(column, row, 1, 1)
    ys, xs = np.nonzero(label == own)
    x, y = xs.min() / _FINE, ys.min() / _FINE
    return _rectangle(x, y, (xs.max() + 1) / _FINE - x, (ys.max() + 1) / _FINE - y)


def _rectangle(x: float, y: float, width: float, height: float) -> Rectangle:
    return Rectangle(x=x, y=y, width=width, height=height)


def grid_affine(
    rows: int, columns: int, shown: Window
) -> tuple[float, float, float, float, float, float]:
    """Map cells of a grid to the centres of their rectangles, as `Location.affine` explains."""
    across, down = shown.width / columns, shown.height / rows
    return (across, 0.0, shown.x + across / 2, 0.0, down, shown.y + down / 2)


def upsample(
    grid: Float[np.ndarray, "rows columns"],
    height_px: int,
    width_px: int,
    shown: Window | None = None,
) -> Float[np.ndarray, "height width"]:
    """Spread a grid over an image, bilinear between the centres of cells, corners not aligned.

    `shown` is the part of the image that the grid covers; beyond it the values of its rim go on.
    """
    shown = shown or Window(0, 0, width_px, height_px)
    down = _spread(grid.shape[0], height_px, shown.y, shown.height)
    across = _spread(grid.shape[1], width_px, shown.x, shown.width)
    heatmap: np.ndarray = down @ grid.astype(np.float32) @ across.T
    return heatmap


def outside(height_px: int, width_px: int, shown: Window) -> Bool[np.ndarray, "height width"]:
    """Mark the pixels whose centres lie outside the part of an image that the model saw."""
    rows, columns = np.ogrid[0.5:height_px, 0.5:width_px]
    seen_rows = (rows > shown.y) & (rows < shown.y + shown.height)
    away: np.ndarray = ~(seen_rows & (columns > shown.x) & (columns < shown.x + shown.width))
    return away


def scaled(shown: Window, down: float, across: float) -> Window:
    """Bring a window to another size of its image: heights times `down`, widths times `across`."""
    return Window(shown.x * across, shown.y * down, shown.width * across, shown.height * down)


def _spread(cells: int, pixels: int, start: float, length: float) -> np.ndarray:
    """Weigh the cells of a grid's axis at the centres of pixels, (pixels, cells); a row sums to 1.

    Bilinear interpolation is separable; beyond the outer centres their values go on.
    """
    position = (np.arange(pixels) + 0.5 - start) * (cells / length) - 0.5
    away = np.abs(position.clip(0, cells - 1)[:, None] - np.arange(cells))
    weights: np.ndarray = (1 - away).clip(min=0).astype(np.float32)
    return weights


def draw_heat(
    image: GreyImage,
    grids: Sequence[Float[np.ndarray, "rows columns"]],
    affine: Sequence[float] = (),
) -> UInt8[np.ndarray, "height width 3"]:
    """Draw grids of scores onto an image, its longer side at most `LONGEST_PX`.

    Of several grids the strongest share counts at each pixel; without any the image is grey.
    `affine` is that of `Location`, the same for all of them; empty: they cover the whole image.
    """
    height, width = image.pixels.shape
    scale = min(1.0, LONGEST_PX / max(height, width))
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    grey8 = Image.fromarray((image.pixels >> 8).astype(np.uint8))
    grey = np.asarray(grey8.resize((size[1], size[0]), Image.Resampling.BILINEAR))
    share = np.zeros(size, dtype=np.float32)
    shown = Window(0, 0, width, height)
    if affine and grids:
        (rows, columns), (across, _, x, _, down, y) = grids[0].shape, affine
        shown = Window(x - across / 2, y - down / 2, across * columns, down * rows)
    part = scaled(shown, size[0] / height, size[1] / width)
    unseen = outside(*size, part)
    for grid in grids:
        heat = upsample(grid, *size, part)
        # scores above the mean of what was seen, as shares of the highest; none where all are alike
        above = np.clip(heat - heat[~unseen].mean(), 0, None)
        above[unseen] = 0
        share = np.maximum(share, np.asarray(above / max(float(above.max()), _EVEN), np.float32))
    opacity = (_OPACITY * share)[..., None]
    stops = np.linspace(0, 1, len(_HEAT))
    colours = np.stack([np.interp(share, stops, channel) for channel in _HEAT.T], axis=-1)
    mixed = (1 - opacity) * grey[..., None] + opacity * colours.astype(np.float32)
    return np.asarray(mixed.round(), dtype=np.uint8)


class Picture:
    """Image of an answer, as a notebook shows it; answers with and without one are equal."""

    def __init__(self, image: SquareImage) -> None:
        self._square = image

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Picture | None)

    __hash__ = None  # type: ignore[assignment]

    def html(self, grids: Sequence[Sequence[Sequence[float]]] = ()) -> str:
        """Draw it as an element of a page, with heatmaps."""
        height, width = self._square.height_px, self._square.width_px
        scale = _SHOWN_PX / max(height, width)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        grey = np.asarray(Image.fromarray(self._square.pixels).resize(size))
        image = GreyImage(grey.astype(np.uint16) * np.uint16(256), 8, self._square.source)
        stream = io.BytesIO()
        Image.fromarray(draw_heat(image, [np.array(grid) for grid in grids])).save(stream, "PNG")
        return f'<img src="data:image/png;base64,{b64encode(stream.getvalue()).decode()}">'
