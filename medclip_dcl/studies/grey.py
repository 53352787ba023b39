"""The picture of one film: 16-bit grey, dark is low, with the few facts that travel with it."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from medclip_dcl.studies.intensities import Shades

Source = Literal["dicom", "jpeg", "png"]


@dataclass(frozen=True)
class GreyImage:
    """One film as it is displayed.

    Attributes:
        pixels: uint16 (height, width); the darkest valid pixel is 0, the brightest
            65535, in between linear; padding is 0; a constant film is all zeros.
        bits_stored: bits of a stored value.
        source: format of the file.
        inverted: whether MONOCHROME1 was turned round.
        constant: whether all valid pixels were equal.
        spacing_mm: millimetres between rows and between columns, where known.
        window: centre and width of the file's first window, on the scale of
            `pixels`, where it has one that was not applied.
        tags: DICOM code strings that name no person (see `dicom.PUBLIC_TAGS`).
    """

    pixels: npt.NDArray[np.uint16]
    bits_stored: int
    source: Source
    inverted: bool = False
    constant: bool = False
    spacing_mm: tuple[float, float] | None = None
    window: tuple[float, float] | None = None
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DecodedFilm:
    """One film as a reader leaves it: stored words, their shades and the facts beside them.

    Attributes:
        shades: the stored words and the table that makes them grey.
        bits_stored: as in `GreyImage`, and so are all others.
    """

    shades: Shades
    bits_stored: int
    source: Source
    inverted: bool = False
    spacing_mm: tuple[float, float] | None = None
    window: tuple[float, float] | None = None
    tags: dict[str, str] = field(default_factory=dict)
