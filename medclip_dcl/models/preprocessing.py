"""Prepared image -> model input: the whole image, resized and normalised."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

from medclip_dcl.data.images import ImagesConfig
from medclip_dcl.models.settings import ModelConfig

MEAN = 0.5
"""Grey level, on the scale 0 to 1, that becomes 0."""
SPREAD = 0.25
"""Grey levels, on the scale 0 to 1, that become 1."""


def to_input(
    images: UInt8[np.ndarray, "images size size"] | UInt8[Tensor, "images size size"],
    input_px: int,
) -> Float[Tensor, "images 1 input_px input_px"]:
    """Turn prepared 8-bit images into the model's input, without cropping.

    Source: ours. The whole image is stretched onto the input, so a cell of the map
        and a box on the image differ by one factor.
    """
    pixels = torch.as_tensor(images).unsqueeze(1).float()
    if pixels.shape[-1] != input_px:
        pixels = functional.interpolate(
            pixels, size=(input_px, input_px), mode="bilinear", antialias=True
        )
    # Grey levels 0 to 255 become -2 to 2.
    return pixels.mul(1 / (255 * SPREAD)).sub(MEAN / SPREAD)


def preprocessing_facts(images: ImagesConfig, model: ModelConfig) -> dict[str, Any]:
    """Say how an image becomes an input, for the card of a published model; plain values.

    Another version of this package that gives other facts for the same config would feed the
    model other numbers than it was trained on.
    """
    return {
        "prepared_px": images.size_px,
        "input_px": model.image.input_px,
        "mean": MEAN,
        "spread": SPREAD,
        "voi": images.voi,
        "equalize": images.equalize,
    }
