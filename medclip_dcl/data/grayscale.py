"""Stored words -> shades of grey -> the square 8-bit picture of training, evaluation and service.

Bit layout, modality and VOI lookup, padding, inversion and scaling all act on single
pixels, so they are worked out once per word that can occur (65,536 at most) and applied
to the image by one look-up. The reduction to a square is exact: the same bits on every machine.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from medclip_dcl.core.errors import ImageError
from medclip_dcl.data.limits import Fit

TOP = 65535  # brightest shade

_LOOKED_UP_ROWS = 64

Words = npt.NDArray[np.uint16] | npt.NDArray[np.uint8]
Values = npt.NDArray[np.int32]
Meaning = Callable[[Values], tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]]
"""Words -> their intensities, and whether each is a pixel rather than padding."""


@dataclass(frozen=True)
class Layout:
    """Position of the value inside a stored word."""

    bits_allocated: int
    bits_stored: int
    high_bit: int
    signed: bool


@dataclass(frozen=True)
class Shades:
    """An image as stored words and the table that makes them grey."""

    words: Words  # (height, width)
    table: npt.NDArray[np.uint16]  # one shade per word: 0 dark, 65535 bright
    low: float  # intensity of the lowest valid pixel
    high: float  # and of the highest

    @property
    def constant(self) -> bool:
        """Whether all valid pixels are equal."""
        return self.low == self.high

    @property
    def pixels(self) -> npt.NDArray[np.uint16]:
        """The image, uint16 (height, width)."""
        return _look_up(self.table, self.words)


def _look_up(table: npt.NDArray[np.uint16], words: Words) -> npt.NDArray[np.uint16]:
    """Return `table[words]`, a third as long: numpy's wide copy of the words stays in the cache."""
    shades = np.empty(words.shape, dtype=np.uint16)
    for row in range(0, len(words), _LOOKED_UP_ROWS):
        part = slice(row, row + _LOOKED_UP_ROWS)
        np.take(table, words[part], out=shades[part], mode="clip")  # in bounds; a check is slower
    return shades


def stored_values(words: Values, layout: Layout) -> Values:
    """Words, int32 in [0, 2**bits_allocated) -> stored values, int32 in [-2**15, 2**16).

    Source: DICOM PS3.5, 8.1.1: Bits Stored up to High Bit, two's complement when signed.
    """
    # Shift the lowest stored bit to 0 and drop what is above: overlays used to be kept there.
    values = (words >> (layout.high_bit + 1 - layout.bits_stored)) & ((1 << layout.bits_stored) - 1)
    if layout.signed:
        values -= (values >> (layout.bits_stored - 1)) << layout.bits_stored  # 2**n off if negative
    return values


def shade(words: Words, meaning: Meaning, *, inverted: bool) -> Shades:
    """Scale stored words, uint8 or uint16 (height, width), by the extremes of the valid ones.

    Padding is zero, and so is all of an image whose valid pixels are equal. `inverted`: high
    intensities are dark (MONOCHROME1).

    Raises:
        ImageError: an intensity that occurs is not finite.

    Source: DICOM PS3.3, C.7.6.3.1.2; scaling by minimum and maximum as MIMIC-CXR-JPG's.
    """
    # The words between the least and the greatest are looked up first: a range costs no pass over
    # the image. Where the meaning is monotonic its extremes are the image's; elsewhere (padding, a
    # look-up table, a sign) only the words that occur may set the scale.
    table = np.zeros(1 << (8 * words.dtype.itemsize), dtype=np.uint16)
    candidates = np.arange(int(words.min()), int(words.max()) + 1, dtype=np.int32)
    intensity, valid = meaning(candidates)
    if not _is_monotonic(intensity, valid):
        occurs = np.zeros(len(table), dtype=bool)
        occurs[words] = True
        candidates = np.flatnonzero(occurs).astype(np.int32)
        intensity, valid = meaning(candidates)
    candidates, intensity = candidates[valid], intensity[valid]
    if not np.isfinite(intensity).all():
        raise ImageError("bad_intensities", "an intensity is not finite; correct the lookup table")
    if intensity.size == 0:
        return Shades(words, table, 0.0, 0.0)
    low, high = float(intensity.min()), float(intensity.max())
    if low < high:
        height = (high - intensity) if inverted else (intensity - low)
        table[candidates] = np.rint(np.clip(height / (high - low), 0.0, 1.0) * TOP)
    return Shades(words, table, low, high)


def padding_mask(
    values: Values, layout: Layout, padding: int | None, limit: int | None
) -> npt.NDArray[np.bool_]:
    """Mark the stored values that are not padding: a value, or a range up to its `limit`.

    Source: DICOM PS3.3, C.7.5.1.1.2.
    """
    if padding is None:
        return np.ones(len(values), dtype=bool)
    ends = [_as_stored(end, layout) for end in (padding, padding if limit is None else limit)]
    inside: npt.NDArray[np.bool_] = (values >= min(ends)) & (values <= max(ends))
    return ~inside


def _is_monotonic(intensity: npt.NDArray[np.float64], valid: npt.NDArray[np.bool_]) -> bool:
    if not valid.all() or not np.isfinite(intensity).all():
        return False
    steps = np.diff(intensity)
    return bool((steps >= 0).all() or (steps <= 0).all())


def _as_stored(value: int, layout: Layout) -> int:
    span = 1 << layout.bits_allocated
    value %= span  # writers mix up US and SS: the sign is the layout's own
    stored = 1 << layout.bits_stored
    span = stored if value < stored else span  # nor are its bits always those of the word
    return value - span if layout.signed and value >= span // 2 else value


Source = Literal["dicom", "jpeg", "png", "array"]


@dataclass(frozen=True)
class GreyImage:
    """One image as it is displayed."""

    pixels: npt.NDArray[np.uint16]
    """(height, width); the darkest valid pixel is 0, the brightest 65535, in between linear;
    padding is 0; a constant image is all zeros."""
    bits_stored: int  # of a stored value
    source: Source  # format of the file; `array`: the pixels were given
    inverted: bool = False  # whether MONOCHROME1 was turned round
    constant: bool = False  # whether all valid pixels were equal
    spacing_mm: tuple[float, float] | None = None  # between rows and between columns, where known
    window: tuple[float, float] | None = None
    """Centre and width of the file's first window, on the scale of `pixels`, where it has one that
    was not applied."""
    tags: dict[str, str] = field(default_factory=dict)  # of `dicom.reader.PUBLIC_TAGS`
    ignored: tuple[str, ...] = ()  # optional attributes whose values cannot be used
    levels: tuple[float, float] | None = None  # lowest and highest of an 8-bit picture, as stored


class DecodedImage(NamedTuple):
    """One image as a reader leaves it: its shades, and what `GreyImage` says of it by name."""

    shades: Shades
    facts: dict[str, Any]


@dataclass(frozen=True)
class SquareImage:
    """An image as `square` gives it, uint8 (size, size), and what `GreyImage` says of it."""

    pixels: npt.NDArray[np.uint8]
    height_px: int  # before it was stretched
    width_px: int
    constant: bool
    source: Source
    inverted: bool


_LUMA = np.array([19595, 38470, 7471]) / 65536  # of red, green and blue, as Pillow has them


def grey_of_array(values: npt.NDArray[Any]) -> GreyImage:
    """Take numbers for an image, scaled by their extremes as those of a file without a window.

    Args:
        values: whole or real numbers, (height, width), or with one or three channels first or
            last; red, green and blue become luma.

    Raises:
        ImageError: they are not numbers, not finite, or of another shape.

    Source: luma of ITU-R BT.601, as of colour files.
    """
    shape = values.shape
    if values.dtype.kind not in "buif" or not values.size:
        raise ImageError("bad_intensities", "an array of pixels needs numbers, one at least")
    if len(shape) == 3 and (shape[2] in {1, 3} or shape[0] in {1, 3}):
        last = values if shape[2] in {1, 3} else np.moveaxis(values, 0, 2)
        kind = values.dtype
        values = last[..., 0]
        if last.shape[2] == 3:
            values = last.astype(np.float64) @ _LUMA
            values = np.floor(values + 0.5) if kind == np.uint8 else values  # Pillow's very levels
    if values.ndim != 2:
        raise ImageError(
            "bad_intensities",
            f"an array of shape {shape} is not one image, (height, width) with or without one or "
            "three channels; of several give a list, or four axes",
        )
    level = values.astype(np.float64)
    low, high = float(level.min()), float(level.max())
    if not np.isfinite((low, high)).all():
        raise ImageError("bad_intensities", "an array of pixels needs finite numbers")
    scaled = np.rint((level - low) / ((high - low) or 1.0) * TOP).astype(np.uint16)
    bits = 8 * values.dtype.itemsize if values.dtype.kind in "ui" else 16
    return GreyImage(scaled, min(bits, 16), "array", constant=low == high)


_SUPPORT = 2.0  # of the bicubic kernel, in pixels of the square
_FINE_BITS = 2  # of a fine level, below one of 255

# Weights are whole numbers that sum to 2**bits, so float32, which holds every whole number up to
# 2**24, adds products exactly in any order, whatever BLAS makes of the sums. The weights
# of one pixel have an absolute sum of at most 1.3 * 2**bits. Down: 255 * 2**2 fine levels times
# 1.3 * 2**12 are 5.4e6. Across: rows are rounded to 2**-4 of a level, and 255 * 1.3 * 2**4 times
# 1.3 * 2**11 are 1.41e7, below 2**24 = 1.68e7. Nothing is clipped between the two passes.
_DOWN_BITS, _ACROSS_BITS, _KEPT_BITS = 12, 11, 4
_DOWN_ROWS, _ACROSS_COLUMNS = 8, 32  # of the square, in one product: bands stay narrow

_Bytes = npt.NDArray[np.uint8]
_Levels = npt.NDArray[np.uint16]


class _Band(NamedTuple):
    first: int  # of some neighbouring pixels of the square
    start: int  # of the input pixels that they are made of
    stop: int
    weights: npt.NDArray[np.float32]


def resample(levels: _Levels | _Bytes, size_px: int) -> _Bytes:
    """Stretch a picture onto a square, within one level of the same filter in real numbers.

    `levels`: uint16 (height, width), fine: 0 to 4 * 255; or uint8, 0 to 255.

    Source: R. Keys 1981, bicubic with a = -0.5, widened by the reduction factor as in Pillow's
        `resize`, which clips what overshoots between its passes; this does not.
    """
    height, width = levels.shape
    fine = _FINE_BITS if levels.dtype == np.uint16 else 0
    rows = np.empty((size_px, width), dtype=np.float32)
    for band in _bands(height, size_px, _DOWN_BITS, _DOWN_ROWS):
        part = rows[band.first : band.first + len(band.weights)]
        np.matmul(band.weights, levels[band.start : band.stop].astype(np.float32), out=part)
    rows *= 2.0 ** (_KEPT_BITS - _DOWN_BITS - fine)  # a power of two: exact
    np.rint(rows, out=rows)
    out = np.empty((size_px, size_px), dtype=np.float32)
    for band in _bands(width, size_px, _ACROSS_BITS, _ACROSS_COLUMNS):
        part = out[:, band.first : band.first + len(band.weights)]
        part[:] = rows[:, band.start : band.stop] @ band.weights.T
    out *= 2.0 ** -(_KEPT_BITS + _ACROSS_BITS)
    return np.clip(np.rint(out), 0, 255).astype(np.uint8)


@lru_cache(maxsize=64)  # images of an archive have few sizes
def _bands(length: int, size_px: int, bits: int, step: int) -> tuple[_Band, ...]:
    # A pixel is made of few neighbours, so the whole matrix of weights is almost all zeros; cut
    # into bands it is dense, and BLAS does the sums.
    starts, weights = _weights(length, size_px, bits)
    taps = np.arange(weights.shape[1])
    bands = []
    for first in range(0, size_px, step):
        rows = slice(first, first + step)
        indices = starts[rows, None] - starts[first] + taps
        matrix = np.zeros((len(indices), int(indices.max()) + 1), dtype=np.float32)
        np.put_along_axis(matrix, indices, weights[rows], axis=1)
        stop = min(int(starts[first]) + matrix.shape[1], length)  # beyond it all weights are 0
        matrix = matrix[:, : stop - int(starts[first])]
        bands.append(_Band(first, int(starts[first]), stop, np.ascontiguousarray(matrix)))
    return tuple(bands)


def _weights(
    length: int, size_px: int, bits: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return each output pixel's first input pixel, and whole weights that sum to 2**bits."""
    scale = length / size_px
    wide = max(scale, 1.0)
    centres = (np.arange(size_px) + 0.5) * scale
    # Truncated after adding one half, as Pillow rounds: other ends would be another filter.
    starts = np.maximum((centres - _SUPPORT * wide + 0.5).astype(np.int64), 0)
    stops = np.minimum((centres + _SUPPORT * wide + 0.5).astype(np.int64), length)
    indices = starts[:, None] + np.arange(int((stops - starts).max()))
    t = np.abs((indices + 0.5 - centres[:, None]) / wide)
    # Keys' kernel in Horner's form: `near` within one pixel, `far` up to two.
    near, far = (1.5 * t - 2.5) * t * t + 1.0, ((-0.5 * t + 2.5) * t - 4.0) * t + 2.0
    real = np.where(t < 1.0, near, np.where(t < _SUPPORT, far, 0.0)) * (indices < stops[:, None])
    whole = np.rint(real / real.sum(axis=1, keepdims=True) * 2**bits)
    # What rounding lost goes to the greatest weight, so that a constant image stays constant.
    whole[np.arange(size_px), whole.argmax(axis=1)] += 2**bits - whole.sum(axis=1)
    return starts, whole


_WHITE = 255 << _FINE_BITS


def square(
    image: GreyImage, size_px: int, equalize: bool, fit: Fit | None = None
) -> npt.NDArray[np.uint8]:
    """Bring an image to a square, anti-aliased: uint8 (size_px, size_px), 0 black.

    It shows the image's `window`. `equalize`: whether the histogram is equalised first, as
    MIMIC-CXR-JPG's is; `fit`: as another maker does it.
    """
    table = np.arange(TOP + 1, dtype=np.uint16)
    return square_of(image.pixels, table, image.levels, size_px, equalize, fit)


def square_of(
    words: Words,
    table: npt.NDArray[np.uint16],
    levels: tuple[float, float] | None,
    size_px: int,
    equalize: bool,
    fit: Fit | None,
) -> npt.NDArray[np.uint8]:
    """Return `square` of the image `table[words]`, in one look-up less."""
    if fit is not None:
        return _fitted(_level_of_shade(levels, fit)[table][words], size_px, fit)
    fine = (_equalized(words, table) if equalize else _straight())[table]
    if words.shape == (size_px, size_px):  # at the scale 1 a pixel is made of itself alone
        return np.take(np.rint(fine * 2.0**-_FINE_BITS).astype(np.uint8), words)
    if words.dtype == np.uint8 and np.array_equal(fine, np.arange(256) << _FINE_BITS):
        return resample(words.view(np.uint8), size_px)  # what most JPEG images come to
    return resample(_look_up(fine, words), size_px)


class Window(NamedTuple):
    """Part of an image that a square shows, in the image's pixels; padding is outside."""

    x: float
    y: float
    width: float
    height: float


def window(height_px: int, width_px: int, size_px: int, fit: Fit | None) -> Window:
    """Return the part of an image that its square shows."""
    if fit is None or fit.how == "stretch":
        return Window(0, 0, width_px, height_px)
    height, width, top, left = _placed(height_px, width_px, size_px, fit)
    down, across = height_px / height, width_px / width
    return Window(left * across, top * down, size_px * across, size_px * down)


def _level_of_shade(levels: tuple[float, float] | None, fit: Fit) -> _Bytes:
    # Of 0 to 255; of an 8-bit picture, whose extremes `levels` are, the one that is stored.
    if levels is None or fit.scaled:
        spread: _Bytes = np.floor(np.arange(TOP + 1) * 255 / TOP).astype(np.uint8)  # as hi-ml
        return spread
    low, high = levels
    stored: _Bytes = np.rint(low + np.arange(TOP + 1) * ((high - low) / TOP)).astype(np.uint8)
    return stored


def _fitted(levels: _Bytes, size_px: int, fit: Fit) -> _Bytes:
    height_px, width_px = levels.shape
    height, width, top, left = _placed(height_px, width_px, size_px, fit)
    kind = Image.Resampling[fit.filter.upper()]
    resized = np.asarray(Image.fromarray(levels).resize((width, height), kind))
    if fit.how != "pad":
        return resized[top : top + size_px, left : left + size_px].copy()
    whole = np.zeros((size_px, size_px), dtype=np.uint8)
    whole[-top : height - top, -left : width - left] = resized
    return whole


def _placed(height_px: int, width_px: int, size_px: int, fit: Fit) -> tuple[int, int, int, int]:
    # Height and width after resizing, and the square's corner in them. Rounded as
    # transformers' and torchvision's processors do; padding as CheXzero's.
    if fit.how == "stretch":
        return size_px, size_px, 0, 0
    if fit.how == "pad":
        ratio = size_px / max(height_px, width_px)
        height, width = (max(1, int(side * ratio)) for side in (height_px, width_px))
        return height, width, -((size_px - height) // 2), -((size_px - width) // 2)
    side, shorter = fit.resized_px or size_px, min(height_px, width_px)
    height, width = (
        side if length == shorter else int(side * length / shorter)
        for length in (height_px, width_px)
    )
    margins = (height - size_px) / 2, (width - size_px) / 2
    top, left = (round(margin) if fit.half_even else int(margin) for margin in margins)
    return height, width, top, left


@cache
def _straight() -> _Levels:
    levels = np.arange(TOP + 1, dtype=np.float64)
    return np.rint(levels * (_WHITE / TOP)).astype(np.uint16)


def _equalized(words: Words, table: npt.NDArray[np.uint16]) -> _Levels:
    # Shades are mapped so that their cumulative histogram becomes a straight line.
    counts = np.bincount(words.ravel(), minlength=len(table))
    shades = np.bincount(table, weights=counts, minlength=TOP + 1)
    below = np.cumsum(shades)
    first = below[np.flatnonzero(shades)[0]]
    if first == below[-1]:
        return np.zeros(TOP + 1, dtype=np.uint16)
    share = np.clip((below - first) / (below[-1] - first), 0.0, 1.0)
    levels: _Levels = np.rint(share * _WHITE).astype(np.uint16)
    return levels
