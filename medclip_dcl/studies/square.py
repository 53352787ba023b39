"""Film -> the square 8-bit picture that training, evaluation and the service share."""

from functools import cache

import numpy as np
import numpy.typing as npt

from medclip_dcl.studies.grey import GreyImage
from medclip_dcl.studies.intensities import TOP, Words
from medclip_dcl.studies.resampling import FINE_BITS, Levels, resample

_WHITE = 255 << FINE_BITS


def square(image: GreyImage, size_px: int, equalize: bool) -> npt.NDArray[np.uint8]:
    """Stretch a film onto a square, anti-aliased.

    Args:
        image: the film.
        size_px: height and width of the square, pixels.
        equalize: whether the film's histogram is equalised first, as MIMIC-CXR-JPG's is.

    Returns:
        uint8 (size_px, size_px), 0 black; x_square = x * size_px / width of the film.

    Source: ours; bicubic with the filter widened by the reduction factor.
    """
    return stretch(image.pixels, _identity(), size_px, equalize)


def stretch(
    words: Words, table: npt.NDArray[np.uint16], size_px: int, equalize: bool
) -> npt.NDArray[np.uint8]:
    """Do what `square` does for a film whose shades are still to be looked up.

    Args:
        words: stored words (height, width).
        table: shade of every word, 0 to 65535.
        size_px: height and width of the square, pixels.
        equalize: whether the film's histogram is equalised first.

    Returns:
        uint8 (size_px, size_px): `square` of the film `table[words]`, in one look-up less.
    """
    levels = (_equalized(words, table) if equalize else _straight())[table]
    if words.dtype == np.uint8 and np.array_equal(levels, np.arange(256) << FINE_BITS):
        return resample(words.view(np.uint8), size_px)  # what most JPEG films come to
    return resample(np.take(levels, words, mode="clip"), size_px)  # in bounds; a check is slower


@cache
def _identity() -> npt.NDArray[np.uint16]:
    return np.arange(TOP + 1, dtype=np.uint16)


@cache
def _straight() -> Levels:
    levels = np.arange(TOP + 1, dtype=np.float64)
    return np.rint(levels * (_WHITE / TOP)).astype(np.uint16)


def _equalized(words: Words, table: npt.NDArray[np.uint16]) -> Levels:
    """Map shades so that their cumulative histogram becomes a straight line."""
    counts = np.bincount(words.ravel(), minlength=len(table))
    shades = np.bincount(table, weights=counts, minlength=TOP + 1)
    below = np.cumsum(shades)
    first = below[np.flatnonzero(shades)[0]]
    if first == below[-1]:
        return np.zeros(TOP + 1, dtype=np.uint16)
    share = np.clip((below - first) / (below[-1] - first), 0.0, 1.0)
    levels: Levels = np.rint(share * _WHITE).astype(np.uint16)
    return levels
