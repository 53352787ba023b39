"""How each view of an image is seen: drawn as plain numbers, applied elsewhere.

Axes
    views   views of one image
    images  places in the global batch, or this process's slice of it

Everything is drawn for the whole batch from the generator of one step, so what a place
gets is a function of seed, step and place: no state to save, and no process count in it.
"""

import math
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from medclip_dcl.config.views import AugmentConfig

_TRIES = 10
_RATIO = (3 / 4, 4 / 3)
_ORDERS = np.array(list(permutations(range(4))), dtype=np.int64)
_BLUR_PX = (0.1, 2.0)


@dataclass(frozen=True)
class Looks:
    """How each view is seen; tensors on the CPU."""

    top: Int64[Tensor, "views images"]
    """First row of the crop, pixels."""
    left: Int64[Tensor, "views images"]
    """First column of the crop, pixels."""
    height: Int64[Tensor, "views images"]
    """Rows of the crop, pixels."""
    width: Int64[Tensor, "views images"]
    """Columns of the crop, pixels."""
    angle: Float32[Tensor, "views images"]
    """Rotation of what is seen about the crop's middle, radians."""
    flipped: Bool[Tensor, "views images"]
    """Whether left and right change places."""
    order: Int64[Tensor, "views images four"]
    """Order of brightness 0, contrast 1, saturation 2 and hue 3; -1 four times: none of them."""
    factors: Float32[Tensor, "views images four"]
    """Factor of each of them; for the hue a turn, 1 being all the way round."""
    greyed: Bool[Tensor, "views images"]
    """Whether the colours are taken away."""
    blur_px: Float32[Tensor, "views images"]
    """Deviation of the Gaussian blur, pixels; 0: none."""

    def at(self, places: slice) -> "Looks":
        """Take a part of the batch.

        Args:
            places: the part.

        Returns:
            The looks of that part.
        """
        return Looks(*(value[:, places] for value in vars(self).values()))


def draw_looks(
    generator: np.random.Generator, views: int, images: int, size_px: int, settings: AugmentConfig
) -> Looks:
    """Draw how every view of a global batch is seen.

    Args:
        generator: source of randomness.
        views: views of each image.
        images: images in the batch.
        size_px: height and width of an image, pixels.
        settings: chances and ranges.

    Returns:
        The looks.

    Source: random resized crop and colour jitter as in SimCLR (Chen et al. 2020,
        Appendix A); chances and ranges of the CIFAR experiments of Chuang et al. 2020;
        the rotation is ours.
    """
    shape = (views, images)
    top, left, height, width = _crops(generator, shape, size_px, settings.smallest_crop)
    angle = settings.rotation_rad * generator.uniform(-1, 1, shape)
    flipped = generator.random(shape) < settings.flip
    order = _ORDERS[generator.integers(len(_ORDERS), size=shape)]
    jittered = generator.random(shape) < settings.jitter
    widths = (settings.brightness, settings.contrast, settings.saturation, settings.hue)
    centres = (1.0, 1.0, 1.0, 0.0)
    factors = np.asarray(centres) + np.asarray(widths) * generator.uniform(-1, 1, (*shape, 4))
    greyed = generator.random(shape) < settings.grey
    blurred = generator.random(shape) < settings.blur
    blur = np.where(blurred, generator.uniform(*_BLUR_PX, shape), 0.0)
    return Looks(
        top=torch.from_numpy(top),
        left=torch.from_numpy(left),
        height=torch.from_numpy(height),
        width=torch.from_numpy(width),
        angle=torch.from_numpy(angle).float(),
        flipped=torch.from_numpy(flipped),
        order=torch.from_numpy(np.where(jittered[..., None], order, -1)),
        factors=torch.from_numpy(factors).float(),
        greyed=torch.from_numpy(greyed),
        blur_px=torch.from_numpy(blur).float(),
    )


def _crops(
    generator: np.random.Generator, shape: tuple[int, int], size_px: int, smallest: float
) -> tuple[np.ndarray, ...]:
    """The first of ten drawn crops that fits; the whole image where none does."""
    tries = (_TRIES, *shape)
    area = generator.uniform(smallest, 1.0, tries) * size_px**2
    ratio = np.exp(generator.uniform(math.log(_RATIO[0]), math.log(_RATIO[1]), tries))
    width = np.rint(np.sqrt(area * ratio)).astype(np.int64)
    height = np.rint(np.sqrt(area / ratio)).astype(np.int64)
    fits = (width >= 1) & (width <= size_px) & (height >= 1) & (height <= size_px)
    first = fits.argmax(axis=0)[None]
    any_fits = fits.any(axis=0)
    width = np.where(any_fits, np.take_along_axis(width, first, 0)[0], size_px)
    height = np.where(any_fits, np.take_along_axis(height, first, 0)[0], size_px)
    corner = generator.random((2, *shape))
    top = (corner[0] * (size_px - height + 1)).astype(np.int64)
    left = (corner[1] * (size_px - width + 1)).astype(np.int64)
    return top, left, height, width
