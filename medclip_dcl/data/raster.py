"""JPEG and PNG bytes -> grey image, through Pillow held to two formats."""

import io
import warnings

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from medclip_dcl.data.codestreams import read_jpeg, require_bits, require_whole
from medclip_dcl.data.grayscale import DecodedImage, Source, Values, Words, shade
from medclip_dcl.data.ipc import Limits
from medclip_dcl.errors import ImageError

_MID_GREY = 128  # what a decoder puts where its stream has ended
_WORD_MODES = {"I;16", "I;16L", "I;16B", "I;16N", "I"}


def read_raster(data: bytes, limits: Limits) -> DecodedImage:
    """Read a JPEG or PNG file.

    Args:
        data: the whole file.
        limits: what the reader is held to.

    Returns:
        The picture, scaled by minimum and maximum as a DICOM image is. 16-bit grey stays
        16 bits; colours become luma (ITU-R BT.601); transparency is laid on black; EXIF
        orientation is applied.

    Raises:
        ImageError: the file is refused; the code says why.
    """
    Image.MAX_IMAGE_PIXELS = limits.max_pixels
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return _read(data, limits)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise ImageError("too_many_pixels", "exceeds images.max_megapixels") from error


def _read(data: bytes, limits: Limits) -> DecodedImage:
    source: Source = "jpeg" if data[:1] == b"\xff" else "png"
    if source == "jpeg":
        require_bits(read_jpeg(data), len(data))
    with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
        if image.width * image.height > limits.max_pixels:
            raise ImageError(
                "too_many_pixels", f"{image.height} x {image.width} exceeds images.max_megapixels"
            )
        image.load()
        if source == "jpeg" and image.mode == "L" and image.getpixel(_last(image)) == _MID_GREY:
            require_whole(data, np.asarray(image), 8)
        upright = ImageOps.exif_transpose(image)
    words = _words(upright)
    return DecodedImage(
        shades=shade(words, _straight, inverted=False),
        bits_stored=8 * words.dtype.itemsize,
        source=source,
    )


def _last(image: Image.Image) -> tuple[int, int]:
    return image.width - 1, image.height - 1


def _straight(words: Values) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    return words.astype(np.float64), np.ones(len(words), dtype=bool)


def _words(image: Image.Image) -> Words:
    if image.mode in _WORD_MODES:
        wide = np.asarray(image).astype(np.int64)
        if wide.size and (wide.min() < 0 or wide.max() > np.iinfo(np.uint16).max):
            raise ImageError("corrupt", "grey levels exceed 16 bits")
        return wide.astype(np.uint16)
    if image.mode != "L":
        has_alpha = image.has_transparency_data
        if has_alpha:
            opaque = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", opaque.size, "black"), opaque)
        image = image.convert("L")
    return np.asarray(image, dtype=np.uint8)
