"""Bicubic reduction to a square in exact arithmetic: the same bits on every machine.

The weights are whole numbers and all sums stay below 2**24, where float32 holds every
whole number. So the matrix products are exact in any order of summation, and faster than
a loop over pixels; nothing is clipped between the two passes.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

_SUPPORT = 2.0  # of the bicubic kernel, in pixels of the square
FINE_BITS = 2
"""Bits of a fine level below one of 255."""

_DOWN_BITS, _ACROSS_BITS, _KEPT_BITS = 12, 11, 4  # 255 * 1.3 * 2**14, 255 * 1.3**2 * 2**15: < 2**24
_DOWN_ROWS, _ACROSS_COLUMNS = 8, 32  # of the square, in one product: bands stay narrow

Bytes = npt.NDArray[np.uint8]
Levels = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class _Band:
    """Neighbouring pixels of the square, and the input pixels they are made of."""

    first: int
    start: int
    stop: int
    weights: npt.NDArray[np.float32]


def resample(levels: Levels | Bytes, size_px: int) -> Bytes:
    """Stretch a picture onto a square, anti-aliased.

    Args:
        levels: uint16 (height, width), fine: 0 to 4 * 255; or uint8, 0 to 255.
        size_px: height and width of the square, pixels.

    Returns:
        uint8 (size_px, size_px); within one level of the same filter in real numbers.

    Source: R. Keys 1981, bicubic with a = -0.5, widened by the reduction factor as in Pillow's
        `resize`, which clips what overshoots between its passes; this does not.
    """
    height, width = levels.shape
    fine = FINE_BITS if levels.dtype == np.uint16 else 0
    rows = np.empty((size_px, width), dtype=np.float32)
    for band in _bands(height, size_px, _DOWN_BITS, _DOWN_ROWS):
        part = rows[band.first : band.first + len(band.weights)]
        np.matmul(band.weights, levels[band.start : band.stop].astype(np.float32), out=part)
    rows *= 2.0 ** (_KEPT_BITS - _DOWN_BITS - fine)
    np.rint(rows, out=rows)
    out = np.empty((size_px, size_px), dtype=np.float32)
    for band in _bands(width, size_px, _ACROSS_BITS, _ACROSS_COLUMNS):
        part = out[:, band.first : band.first + len(band.weights)]
        part[:] = rows[:, band.start : band.stop] @ band.weights.T
    out *= 2.0 ** -(_KEPT_BITS + _ACROSS_BITS)
    return np.clip(np.rint(out), 0, 255).astype(np.uint8)


@lru_cache(maxsize=64)
def _bands(length: int, size_px: int, bits: int, step: int) -> tuple[_Band, ...]:
    starts, weights = _weights(length, size_px, bits)
    taps = np.arange(weights.shape[1])
    bands = []
    for first in range(0, size_px, step):
        rows = slice(first, first + step)
        places = starts[rows, None] - starts[first] + taps
        matrix = np.zeros((len(places), int(places.max()) + 1), dtype=np.float32)
        np.put_along_axis(matrix, places, weights[rows], axis=1)
        stop = min(int(starts[first]) + matrix.shape[1], length)  # beyond it all weights are 0
        matrix = matrix[:, : stop - int(starts[first])]
        bands.append(_Band(first, int(starts[first]), stop, np.ascontiguousarray(matrix)))
    return tuple(bands)


def _weights(
    length: int, size_px: int, bits: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Give each output pixel's first input pixel, and whole weights that sum to 2**bits."""
    scale = length / size_px
    wide = max(scale, 1.0)
    centres = (np.arange(size_px) + 0.5) * scale
    starts = np.maximum((centres - _SUPPORT * wide + 0.5).astype(np.int64), 0)
    stops = np.minimum((centres + _SUPPORT * wide + 0.5).astype(np.int64), length)
    places = starts[:, None] + np.arange(int((stops - starts).max()))
    t = np.abs((places + 0.5 - centres[:, None]) / wide)
    near, far = (1.5 * t - 2.5) * t * t + 1.0, ((-0.5 * t + 2.5) * t - 4.0) * t + 2.0
    real = np.where(t < 1.0, near, np.where(t < _SUPPORT, far, 0.0)) * (places < stops[:, None])
    whole = np.rint(real / real.sum(axis=1, keepdims=True) * 2**bits)
    whole[np.arange(size_px), whole.argmax(axis=1)] += 2**bits - whole.sum(axis=1)
    return starts, whole
