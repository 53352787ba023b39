"""Film -> the square 8-bit picture that training, evaluation and the service share."""

import numpy as np
import numpy.typing as npt
from PIL import Image

from medclip_dcl.studies.grey import TOP, GreyImage

_WHITE = 255


def square(image: GreyImage, size_px: int, equalize: bool) -> npt.NDArray[np.uint8]:
    """Stretch a film onto a square, anti-aliased.

    Args:
        image: the film.
        size_px: height and width of the square, pixels.
        equalize: whether the film's histogram is equalised first, as MIMIC-CXR-JPG's is.

    Returns:
        uint8 (size_px, size_px), 0 black; x_square = x * size_px / width of the film.

    Source: ours; bicubic with the filter widened by the reduction factor (Pillow).
    """
    table = _equalized(image.pixels) if equalize else _straight()
    grey = Image.fromarray(table[image.pixels])
    if grey.size != (size_px, size_px):
        grey = grey.resize((size_px, size_px), Image.Resampling.BICUBIC)
    return np.array(grey, dtype=np.uint8)


def _straight() -> npt.NDArray[np.uint8]:
    levels = np.arange(TOP + 1, dtype=np.float64)
    return np.rint(levels * (_WHITE / TOP)).astype(np.uint8)


def _equalized(pixels: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint8]:
    """Map grey levels so that their cumulative histogram becomes a straight line."""
    below = np.cumsum(np.bincount(pixels.ravel(), minlength=TOP + 1))
    first = below[pixels.min()]
    spread = below[-1] - first
    if spread == 0:
        return np.zeros(TOP + 1, dtype=np.uint8)
    share = np.clip((below - first) / spread, 0.0, 1.0)
    table: npt.NDArray[np.uint8] = np.rint(share * _WHITE).astype(np.uint8)
    return table
