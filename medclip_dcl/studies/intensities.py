"""What a stored word means as a shade of grey: one table over all words it can hold.

Bit layout, modality and VOI lookup, padding, inversion and scaling all act on single
pixels, so they are worked out once per possible word (65,536 of them) and applied to the
film by one look-up.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medclip_dcl.errors import ImageError
from medclip_dcl.studies.grey import TOP

Words = npt.NDArray[np.uint16] | npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Layout:
    """Where the value stands inside a stored word."""

    bits_allocated: int
    bits_stored: int
    high_bit: int
    signed: bool


@dataclass(frozen=True)
class Shades:
    """The grey picture, and the intensities that became its ends.

    Attributes:
        pixels: uint16 (height, width).
        low: intensity that became 0 before inversion.
        high: intensity that became 65535 before inversion.
    """

    pixels: npt.NDArray[np.uint16]
    low: float
    high: float

    @property
    def constant(self) -> bool:
        """Whether all valid pixels are equal."""
        return self.low == self.high


def stored_values(layout: Layout) -> npt.NDArray[np.int32]:
    """Give the stored value of every word.

    Args:
        layout: where the value stands.

    Returns:
        int32 (2**bits_allocated,), in [-2**15, 2**16).

    Source: DICOM PS3.5, 8.1.1: Bits Stored up to High Bit, two's complement when signed.
    """
    words = np.arange(1 << layout.bits_allocated, dtype=np.int32)
    shift = layout.high_bit + 1 - layout.bits_stored
    values = (words >> shift) & ((1 << layout.bits_stored) - 1)
    if layout.signed:
        values = np.where(
            values >> (layout.bits_stored - 1) & 1, values - (1 << layout.bits_stored), values
        )
    return values.astype(np.int32)


def shade(
    words: Words,
    intensity: npt.NDArray[np.float64],
    valid: npt.NDArray[np.bool_],
    *,
    inverted: bool,
) -> Shades:
    """Turn stored words into grey, scaled by the minimum and maximum of the valid ones.

    Args:
        words: uint8 or uint16 (height, width), as stored.
        intensity: (words,) intensity of every word that may occur.
        valid: (words,) False where the word is padding.
        inverted: whether high intensities are dark (MONOCHROME1).

    Returns:
        The picture; zeros where padded, and throughout where all valid pixels are equal.

    Raises:
        ImageError: an intensity that occurs is not finite.

    Source: DICOM PS3.3, C.7.6.3.1.2; scaling by minimum and maximum as MIMIC-CXR-JPG's.
    """
    occurs = np.zeros(len(intensity), dtype=bool)
    occurs[words] = True
    found = intensity[occurs & valid]
    if not np.isfinite(found).all():
        raise ImageError("bad_intensities", "an intensity is not finite; correct the rescale tags")
    if found.size == 0 or found.min() == found.max():
        level = float(found[0]) if found.size else 0.0
        return Shades(np.zeros(words.shape, dtype=np.uint16), level, level)
    low, high = float(found.min()), float(found.max())
    with np.errstate(invalid="ignore", over="ignore"):
        height = (high - intensity) if inverted else (intensity - low)
        share = height / (high - low)
    if not np.isfinite(share[occurs & valid]).all():
        raise ImageError("bad_intensities", "the span of intensities is not finite")
    share = np.clip(np.where(valid & np.isfinite(share), share, 0.0), 0.0, 1.0)
    table = np.rint(share * TOP).astype(np.uint16)
    return Shades(table[words], low, high)


def padding_mask(
    values: npt.NDArray[np.int32], layout: Layout, padding: int | None, limit: int | None
) -> npt.NDArray[np.bool_]:
    """Mark the stored values that are no padding.

    Args:
        values: stored value of every word, from `stored_values`.
        layout: where the value stands.
        padding: PixelPaddingValue as read, signed or not; None: no padding.
        limit: PixelPaddingRangeLimit, where there is one.

    Returns:
        (words,) True where valid.

    Source: DICOM PS3.3, C.7.5.1.1.2.
    """
    if padding is None:
        return np.ones(len(values), dtype=bool)
    ends = [_as_stored(end, layout) for end in (padding, padding if limit is None else limit)]
    inside: npt.NDArray[np.bool_] = (values >= min(ends)) & (values <= max(ends))
    return ~inside


def _as_stored(value: int, layout: Layout) -> int:
    """Read a padding value with the layout's own sign; writers mix up US and SS."""
    span = 1 << layout.bits_allocated
    value %= span
    return value - span if layout.signed and value >= span // 2 else value
