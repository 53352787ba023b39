"""Images and heatmaps as bytes for a screen."""

import io
import json

import numpy as np
import numpy.typing as npt
from PIL import Image

from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.inference import Grounding, upsample

LONGEST_PX = 1024
"""Longest side of a picture that is drawn here."""

_OPACITY = 0.55
_EVEN = 1e-3  # scores this close to the mean are shown as weak as they are
_HEAT = np.array(
    [[0, 0, 0], [68, 1, 84], [187, 55, 84], [249, 142, 9], [252, 255, 164]], dtype=np.float32
)


def image_bytes(image: GreyImage) -> bytes:
    """Give an image's pixels as they are.

    Args:
        image: the image.

    Returns:
        16-bit little-endian greys, row by row from the top.
    """
    return image.pixels.astype("<u2", copy=False).tobytes()


def image_facts(image: GreyImage) -> str:
    """Describe an image in a header's characters.

    Args:
        image: the image.

    Returns:
        JSON: width and height in pixels, spacing in mm and window, or null, and source.
    """
    height, width = image.pixels.shape
    facts = {
        "width": width,
        "height": height,
        "spacing_mm": image.spacing_mm,
        "window": image.window,
        "bits_stored": image.bits_stored,
        "source": image.source,
        "inverted": image.inverted,
    }
    return json.dumps(facts)


def image_png(image: GreyImage) -> bytes:
    """Give an image as a 16-bit grey PNG of full size.

    Args:
        image: the image.

    Returns:
        The encoded picture.
    """
    return _png(Image.fromarray(np.ascontiguousarray(image.pixels)))


def overlay_png(image: GreyImage, found: Grounding) -> bytes:
    """Draw where a phrase is answered onto the image.

    Args:
        image: the image.
        found: the grounding of one phrase.

    Returns:
        A PNG whose longer side is at most `LONGEST_PX`.
    """
    height, width = image.pixels.shape
    scale = min(1.0, LONGEST_PX / max(height, width))
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    grey8 = Image.fromarray((image.pixels >> 8).astype(np.uint8))
    grey = np.asarray(grey8.resize((size[1], size[0]), Image.Resampling.BILINEAR))
    heat = _relative(upsample(found.grid, *size))
    colour = _coloured(heat)
    opacity = (_OPACITY * heat)[..., None]
    mixed = (1 - opacity) * grey[..., None] + opacity * colour
    return _png(Image.fromarray(mixed.round().astype(np.uint8)))


def _relative(heat: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Scores above the image's mean, as shares of the highest; none where all are alike."""
    above = np.clip(heat - heat.mean(), 0, None)
    top = max(float(above.max()), _EVEN)
    return np.asarray(above / top, dtype=np.float32)


def _coloured(heat: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    stops = np.linspace(0, 1, len(_HEAT))
    channels = [np.interp(heat, stops, _HEAT[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).astype(np.float32)


def _png(picture: Image.Image) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, "PNG", compress_level=1)
    return stream.getvalue()
