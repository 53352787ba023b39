"""What a stored word means as a shade of grey: one table over all words it can hold.

Bit layout, modality and VOI lookup, padding, inversion and scaling all act on single
pixels, so they are worked out once per word that can occur (65,536 at most) and applied
to the film by one look-up.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medclip_dcl.errors import ImageError

TOP = 65535
"""Brightest shade."""

Words = npt.NDArray[np.uint16] | npt.NDArray[np.uint8]
Values = npt.NDArray[np.int32]
Meaning = Callable[[Values], tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]]
"""Words -> their intensities, and whether each is a pixel rather than padding."""


@dataclass(frozen=True)
class Layout:
    """Where the value stands inside a stored word."""

    bits_allocated: int
    bits_stored: int
    high_bit: int
    signed: bool


@dataclass(frozen=True)
class Shades:
    """A film as stored words and the table that makes them grey.

    Attributes:
        words: uint8 or uint16 (height, width).
        table: uint16, one shade per word: 0 dark, 65535 bright.
        low: intensity of the lowest valid pixel.
        high: intensity of the highest valid pixel.
    """

    words: Words
    table: npt.NDArray[np.uint16]
    low: float
    high: float

    @property
    def constant(self) -> bool:
        """Whether all valid pixels are equal."""
        return self.low == self.high

    @property
    def pixels(self) -> npt.NDArray[np.uint16]:
        """The film, uint16 (height, width)."""
        return self.table[self.words]


def stored_values(words: Values, layout: Layout) -> Values:
    """Give the stored values of words.

    Args:
        words: int32, in [0, 2**bits_allocated).
        layout: where the value stands.

    Returns:
        int32, in [-2**15, 2**16).

    Source: DICOM PS3.5, 8.1.1: Bits Stored up to High Bit, two's complement when signed.
    """
    values = (words >> (layout.high_bit + 1 - layout.bits_stored)) & ((1 << layout.bits_stored) - 1)
    if layout.signed:
        values -= (values >> (layout.bits_stored - 1)) << layout.bits_stored
    return values


def shade(words: Words, meaning: Meaning, *, inverted: bool) -> Shades:
    """Scale stored words to grey by the minimum and maximum of the valid ones.

    Args:
        words: uint8 or uint16 (height, width), as stored; not empty.
        meaning: what words mean.
        inverted: whether high intensities are dark (MONOCHROME1).

    Returns:
        The film; zero where padded, and throughout where all valid pixels are equal.

    Raises:
        ImageError: an intensity that occurs is not finite.

    Source: DICOM PS3.3, C.7.6.3.1.2; scaling by minimum and maximum as MIMIC-CXR-JPG's.
    """
    table = np.zeros(1 << (8 * words.dtype.itemsize), dtype=np.uint16)
    known = np.arange(int(words.min()), int(words.max()) + 1, dtype=np.int32)
    intensity, valid = meaning(known)
    if not _rises_or_falls(intensity, valid):  # its ends need not be the film's extremes
        occurs = np.zeros(len(table), dtype=bool)
        occurs[words] = True
        known = np.flatnonzero(occurs).astype(np.int32)
        intensity, valid = meaning(known)
    known, intensity = known[valid], intensity[valid]
    if not np.isfinite(intensity).all():
        raise ImageError("bad_intensities", "an intensity is not finite; correct the rescale tags")
    if intensity.size == 0:
        return Shades(words, table, 0.0, 0.0)
    low, high = float(intensity.min()), float(intensity.max())
    if low < high:
        height = (high - intensity) if inverted else (intensity - low)
        table[known] = np.rint(np.clip(height / (high - low), 0.0, 1.0) * TOP)
    return Shades(words, table, low, high)


def padding_mask(
    values: Values, layout: Layout, padding: int | None, limit: int | None
) -> npt.NDArray[np.bool_]:
    """Mark the stored values that are no padding.

    Args:
        values: stored values.
        layout: where the value stands.
        padding: PixelPaddingValue as read, signed or not; None: no padding.
        limit: PixelPaddingRangeLimit, where there is one.

    Returns:
        True where valid.

    Source: DICOM PS3.3, C.7.5.1.1.2.
    """
    if padding is None:
        return np.ones(len(values), dtype=bool)
    ends = [_as_stored(end, layout) for end in (padding, padding if limit is None else limit)]
    inside: npt.NDArray[np.bool_] = (values >= min(ends)) & (values <= max(ends))
    return ~inside


def _rises_or_falls(intensity: npt.NDArray[np.float64], valid: npt.NDArray[np.bool_]) -> bool:
    if not valid.all() or not np.isfinite(intensity).all():
        return False
    steps = np.diff(intensity)
    return bool((steps >= 0).all() or (steps <= 0).all())


def _as_stored(value: int, layout: Layout) -> int:
    """Read a padding value with the layout's own sign; writers mix up US and SS."""
    span = 1 << layout.bits_allocated
    value %= span
    return value - span if layout.signed and value >= span // 2 else value
