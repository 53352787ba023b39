"""Random crop, brightness and contrast of prepared films; never a flip.

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
from medclip_dcl.models.preprocessing import MEAN, SPREAD

_LEAST_SHARE = 0.8


@dataclass(frozen=True)
class Views:
    """How each film of a batch is seen."""

    top: Int64[np.ndarray, " films"]
    """First row of the crop, pixels of the prepared film."""
    left: Int64[np.ndarray, " films"]
    """First column of the crop, pixels of the prepared film."""
    brightness: Float[np.ndarray, " films"]
    """Factor of every grey value."""
    contrast: Float[np.ndarray, " films"]
    """Factor of the distance from the film's mean."""

    def at(self, places: slice) -> "Views":
        """Take a part of the batch.

        Args:
            places: the part.

        Returns:
            The views of that part.
        """
        return Views(
            self.top[places], self.left[places], self.brightness[places], self.contrast[places]
        )


def slack_px(size_px: int, input_px: int) -> int:
    """Give the room that a crop has.

    Args:
        size_px: height and width of a prepared film, pixels.
        input_px: height and width of the model's input, pixels.

    Returns:
        Pixels by which a crop can move.

    Raises:
        ConfigError: the input is larger than the film, or a small part of it.
    """
    if input_px > size_px:
        raise ConfigError(
            f"model.image.input_px {input_px} exceeds images.size_px {size_px}: the input is a "
            "crop of a prepared film; lower the one or raise the other"
        )
    if input_px < _LEAST_SHARE * size_px:
        raise ConfigError(
            f"model.image.input_px {input_px} is less than {_LEAST_SHARE} of images.size_px "
            f"{size_px}: crops would show parts of a film, larger than the service shows the "
            "whole; the paper cuts 480 out of 512"
        )
    return size_px - input_px


def draw_views(
    generator: np.random.Generator, films: int, slack: int, brightness: float, contrast: float
) -> Views:
    """Draw how each film of a global batch is seen.

    Args:
        generator: source of randomness.
        films: films in the batch.
        slack: pixels by which a crop can move, at least 0.
        brightness: half-width of the brightness factor, in [0, 1).
        contrast: half-width of the contrast factor, in [0, 1).

    Returns:
        Uniform crops, and factors uniform in [1 - half-width, 1 + half-width].

    Source: Wang et al. 2023, Section 3.2: crop, brightness, contrast; half-widths are ours.
    """
    corner = generator.integers(0, slack, size=(2, films), endpoint=True)
    factor = generator.uniform(-1.0, 1.0, size=(2, films)).astype(np.float32)
    return Views(corner[0], corner[1], 1 + brightness * factor[0], 1 + contrast * factor[1])


def centre_views(films: int, slack: int) -> Views:
    """See each film in the middle, as it is: for validation.

    Args:
        films: films in the batch.
        slack: pixels by which a crop can move, at least 0.

    Returns:
        The same view for all.
    """
    corner = np.full(films, slack // 2, dtype=np.int64)
    factor = np.ones(films, dtype=np.float32)
    return Views(corner, corner, factor, factor)


def cut(
    film: UInt8[np.ndarray, "size size"],
    top: int,
    left: int,
    out: UInt8[np.ndarray, "input_px input_px"],
) -> None:
    """Copy one crop out of a film.

    Args:
        film: prepared film, 0 black to 255 white; a memory map is read here.
        top: first row, pixels.
        left: first column, pixels.
        out: receives the crop.
    """
    side = out.shape[0]
    np.copyto(out, film[top : top + side, left : left + side])


def jitter(
    crops: UInt8[Tensor, "films 1 height width"],
    brightness: Float[Tensor, " films"],
    contrast: Float[Tensor, " films"],
) -> Float[Tensor, "films 1 height width"]:
    """Apply brightness, then contrast about the film's mean, and normalise.

    Args:
        crops: grey values, 0 black to 255 white.
        brightness: factor of every grey value.
        contrast: factor of the distance from the film's mean, after brightness.

    Returns:
        clamp(c * (b * x - m) + m, 0, 255), normalised, with m = b * mean(x); factors of 1
        give the model's own preprocessing.
    """
    films = crops.to(torch.float32)
    middle = films.mean(dim=(1, 2, 3)) * brightness
    # The normalisation is folded in, so that every pixel is touched three times.
    scale = brightness * contrast / (255 * SPREAD)
    shift = middle * (1 - contrast) / (255 * SPREAD) - MEAN / SPREAD
    films.mul_(scale.view(-1, 1, 1, 1)).add_(shift.view(-1, 1, 1, 1))
    return films.clamp_(-MEAN / SPREAD, (1 - MEAN) / SPREAD)
