"""Films and heatmaps as data URIs, small enough to stand in a page."""

import base64
import io

import matplotlib as mpl
import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from medclip_dcl.tasks.grounding import upsample

_FILM_PX = 288
_HEAT_PX = 96
_STRONGEST = 0.7  # opacity of the highest score
_FAINTEST = 0.4  # share of the range below which nothing is laid over the film


def film_uri(film: UInt8[np.ndarray, "size size"]) -> str:
    """Encode a prepared film.

    Args:
        film: square 8-bit film.

    Returns:
        A JPEG as data URI, at most 288 pixels wide.
    """
    picture = Image.fromarray(film)
    picture.thumbnail((_FILM_PX, _FILM_PX), Image.Resampling.BICUBIC)
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=85)
    return jpeg_uri(stream.getvalue())


def heat_uri(grid: Float[np.ndarray, "rows columns"]) -> str:
    """Encode a grid of scores as a translucent layer over a film.

    Args:
        grid: region-sentence scores.

    Returns:
        A PNG as data URI. The highest score is strongest, the lower two fifths of the range
        are transparent, and so is a flat grid throughout.
    """
    heat = upsample(grid, _HEAT_PX, _HEAT_PX)
    low, high = float(heat.min()), float(heat.max())
    share = (heat - low) / (high - low) if high > low else np.zeros_like(heat)
    colours = mpl.colormaps["plasma"](0.15 + 0.8 * share, bytes=True)
    above = np.clip((share - _FAINTEST) / (1 - _FAINTEST), 0, 1)
    colours[..., 3] = np.rint(255 * _STRONGEST * above)
    stream = io.BytesIO()
    Image.fromarray(colours, "RGBA").quantize(64, Image.Quantize.FASTOCTREE).save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def jpeg_uri(data: bytes) -> str:
    """Wrap an encoded JPEG.

    Args:
        data: the whole file.

    Returns:
        A data URI.
    """
    return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"
