"""JPEG and PNG bytes -> grey image or small picture, through Pillow held to two formats."""

import io
import warnings
from typing import Literal

import numpy as np
import numpy.typing as npt
from jaxtyping import UInt8
from PIL import Image, ImageOps

from medclip_dcl.data.codestreams import read_jpeg, require_bits, require_whole
from medclip_dcl.data.grayscale import DecodedImage, Source, Values, Words, shade
from medclip_dcl.data.ipc import Limits
from medclip_dcl.errors import ImageError

_MOST_PIXELS = 4_000_000
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


def read_picture(
    data: bytes, channels: Literal[1, 3], size_px: int
) -> UInt8[np.ndarray, "channels size size"]:
    """Read a JPEG or PNG of an image set: no image, so colours stay and nothing is scaled.

    Image sets are public and their pictures small: they are decoded in this process, with
    their declared size checked first. Images go through `images.open_image`.

    Args:
        data: the whole file.
        channels: 1 for grey, 3 for red, green and blue.
        size_px: height and width of the result, pixels; others are resized.

    Returns:
        Values 0 to 255.

    Raises:
        ImageError: it is larger than 4 megapixels, no JPEG or PNG, or damaged.
    """
    mode = "L" if channels == 1 else "RGB"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise ImageError("too_many_pixels", f"{image.height} x {image.width}")
                pixels = np.asarray(image.convert(mode))
        except (OSError, SyntaxError, ValueError, Warning) as error:
            raise ImageError(
                "corrupt", f"the picture cannot be read ({type(error).__name__})"
            ) from (error)
    return resize_picture(pixels.reshape(*pixels.shape[:2], channels).transpose(2, 0, 1), size_px)


def resize_picture(
    pixels: UInt8[np.ndarray, "channels height width"], size_px: int
) -> UInt8[np.ndarray, "channels size size"]:
    """Stretch a picture onto a square.

    Args:
        pixels: values 0 to 255.
        size_px: height and width of the result, pixels.

    Returns:
        Bilinear samples, anti-aliased where it shrinks; the picture itself where it has the size.
    """
    if pixels.shape[1:] == (size_px, size_px):
        return np.ascontiguousarray(pixels)
    planes = [
        np.asarray(Image.fromarray(plane).resize((size_px, size_px), Image.Resampling.BILINEAR))
        for plane in np.ascontiguousarray(pixels)
    ]
    return np.stack(planes)
