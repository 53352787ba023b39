"""Random crop, brightness and contrast of prepared images; never a flip.

A flip would turn left into right, and reports say which side.

The crop is cut while reading (bytes are moved, nothing else); brightness and contrast
are applied where the model runs, on bytes that were sent there as they are.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from medclip_dcl.errors import ConfigError
from medclip_dcl.models.image_encoder import MEAN, SPREAD

_JITTER = 0.2  # half-width of the factors of brightness and contrast; the paper names neither
_LEAST_SHARE = 0.8  # of an image's side that a crop shows


@dataclass(frozen=True)
class CropParams:
    """Crop, brightness and contrast of each image of a batch."""

    top: Int64[np.ndarray, " images"]
    """First row of the crop, pixels of the prepared image."""
    left: Int64[np.ndarray, " images"]
    """First column of the crop, pixels of the prepared image."""
    brightness: Float[np.ndarray, " images"]
    """Factor of every grey value."""
    contrast: Float[np.ndarray, " images"]
    """Factor of the distance from the image's mean."""


def slack_px(size_px: int, input_px: int) -> int:
    """Give the pixels by which a crop of side `input_px` can move in an image of side `size_px`."""
    if input_px > size_px:
        raise ConfigError(
            f"model.image.input_px {input_px} exceeds images.size_px {size_px}: the input is a "
            "crop of a prepared image; lower the one or raise the other"
        )
    if input_px < _LEAST_SHARE * size_px:
        raise ConfigError(
            f"model.image.input_px {input_px} is less than {_LEAST_SHARE} of images.size_px "
            f"{size_px}: crops would show parts of an image, larger than the service shows the "
            "whole; the paper cuts 480 out of 512"
        )
    return size_px - input_px


def draw_crops(generator: np.random.Generator, images: int, slack: int) -> CropParams:
    """Draw how each image of a global batch is seen: uniform crops, factors within 0.2 of 1.

    Source: Wang et al. 2023, Section 3.2: crop, brightness, contrast; the 0.2 is ours.
    """
    corner = generator.integers(0, slack, size=(2, images), endpoint=True)
    factor = 1 + _JITTER * generator.uniform(-1.0, 1.0, size=(2, images)).astype(np.float32)
    return CropParams(*corner, *factor)


def centre_crops(images: int, slack: int) -> CropParams:
    """See each image in the middle, as it is: for validation."""
    corner = np.full(images, slack // 2, dtype=np.int64)
    factor = np.ones(images, dtype=np.float32)
    return CropParams(corner, corner, factor, factor)


def cut(
    image: UInt8[np.ndarray, "size size"],
    top: int,
    left: int,
    out: UInt8[np.ndarray, "input_px input_px"],
) -> None:
    """Copy the crop that starts at a row and column; a memory-mapped image is read here."""
    side = out.shape[0]
    np.copyto(out, image[top : top + side, left : left + side])


def jitter(
    crops: UInt8[Tensor, "images 1 height width"],
    brightness: Float[Tensor, " images"],
    contrast: Float[Tensor, " images"],
) -> Float[Tensor, "images 1 height width"]:
    """Apply brightness b, then contrast c about the image's mean, and normalise.

    clamp(c * (b * x - m) + m, 0, 255), normalised, with m = b * mean(x); factors of 1 give the
    model's own preprocessing.
    """
    images = crops.to(torch.float32)
    middle = images.mean(dim=(1, 2, 3)) * brightness
    # The normalisation is folded in, so that every pixel is touched three times.
    scale = brightness * contrast / (255 * SPREAD)
    shift = middle * (1 - contrast) / (255 * SPREAD) - MEAN / SPREAD
    images.mul_(scale.view(-1, 1, 1, 1)).add_(shift.view(-1, 1, 1, 1))
    return images.clamp_(-MEAN / SPREAD, (1 - MEAN) / SPREAD)
