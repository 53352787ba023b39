"""Views of images as in SimCLR: drawn as plain numbers, then applied to a whole batch.

Chances and ranges are those of the CIFAR experiments of Chuang et al. 2020; the rotation, off
unless asked for, is ours. Colors are values in [0, 1]; gray images have no saturation and no hue.
"""

import math
from argparse import Namespace
from itertools import permutations
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

Images = Float[Tensor, "images channels height width"]


class Views(NamedTuple):
    """How each view of each image is seen: tensors (views, images), on the CPU."""

    top: Tensor  # crop, pixels
    left: Tensor
    height: Tensor
    width: Tensor
    angle: Tensor  # rotation about the crop's middle, radians
    flipped: Tensor
    order: Tensor  # (views, images, 4): brightness 0, contrast 1, saturation 2, hue 3; -1: none
    factors: Tensor  # (views, images, 4)
    grayed: Tensor
    blur_px: Tensor  # deviation of the Gaussian; 0: none


def draw_views(rng: np.random.Generator, images: int, args: Namespace) -> Views:
    """Draw the views of every image of a global batch; each process takes its part.

    Args:
        rng: source of randomness.
        images: images in the batch.
        args: `positives`, one less than views; `size`, pixels; `smallest_crop`, the least share of
            the image that a view shows; `rotation_rad`, the largest rotation; `flip` and `blur`,
            their chances.
    """
    shape = args.positives + 1, images
    tries = 10, *shape
    area = rng.uniform(args.smallest_crop, 1.0, tries) * args.size**2
    ratio = np.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3), tries))
    sides = np.rint([np.sqrt(area / ratio), np.sqrt(area * ratio)]).clip(1)
    fits = (sides <= args.size).all(axis=0)  # the first try that fits is taken, or the whole image
    first = np.take_along_axis(sides, fits.argmax(axis=0)[None, None], axis=1)[:, 0]
    sides = np.where(fits.any(axis=0), first, args.size)
    corner = np.floor(rng.random((2, *shape)) * (args.size - sides + 1))
    angle = args.rotation_rad * rng.uniform(-1, 1, shape)
    flipped = rng.random(shape) < args.flip
    order = np.array(list(permutations(range(4))))[rng.integers(24, size=shape)]
    order = np.where(rng.random((*shape, 1)) < 0.8, order, -1)
    factors = np.array([1, 1, 1, 0]) + [0.4, 0.4, 0.4, 0.1] * rng.uniform(-1, 1, (*shape, 4))
    grayed = rng.random(shape) < 0.2
    blurred = rng.random(shape) < args.blur
    blur_px = np.where(blurred, rng.uniform(0.1, 2.0, shape), 0.0)
    drawn = (*corner, *sides, angle, flipped, order, factors, grayed, blur_px)
    plain = (value.astype(np.float32) if value.dtype.kind == "f" else value for value in drawn)
    return Views(*map(torch.from_numpy, plain))


def show(
    pixels: UInt8[Tensor, "images channels size size"], views: Views, args: Namespace
) -> Images:
    """Show the views of each image, normalized: all first ones before all second ones."""
    count = len(views.top)
    order = views.order.flatten(0, 1)  # stays on the CPU, so that no device is waited for
    views = Views(*(value.flatten(0, 1).to(pixels.device) for value in views))
    seen = crop((pixels / 255).repeat(count, 1, 1, 1), views, args.view_size)
    seen = jitter_colors(seen, order, views.factors)
    seen = torch.where(_each(views.grayed), luma(seen), seen)
    return normalize(blur(seen, views.blur_px), args)


def normalize(images: Images, args: Namespace) -> Images:
    """Subtract `args.mean` of each channel and divide by `args.std`."""
    mean, std = (images.new_tensor(values).view(-1, 1, 1) for values in (args.mean, args.std))
    return (images - mean) / std


def crop(images: Images, views: Views, view_size: int) -> Images:
    """Cut out, turn and mirror each image's crop and scale it: bilinear, edges repeated."""
    side = images.shape[-1]
    finer = -(-side // view_size)  # a smaller view is the mean of finer pixels: no aliasing
    size = finer * view_size
    top, left, height, width, angle, flipped = (value.view(-1, 1, 1) for value in views[:6])
    # Offsets of output pixels from the crop's middle, in pixels of the image.
    along = (torch.arange(size, device=images.device) + 0.5) / size - 0.5
    down = along.view(1, -1, 1) * height
    right = along.view(1, 1, -1) * width * (1 - 2 * flipped.float())
    x = angle.cos() * right - angle.sin() * down + left + width / 2 - 0.5
    y = angle.sin() * right + angle.cos() * down + top + height / 2 - 0.5
    x = torch.minimum(x.maximum(left), left + width - 1)
    y = torch.minimum(y.maximum(top), top + height - 1)
    grid = torch.stack([(2 * x + 1) / side - 1, (2 * y + 1) / side - 1], dim=-1)
    seen = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    return functional.avg_pool2d(seen, finer)


def jitter_colors(images: Images, order: Tensor, factors: Float[Tensor, "images four"]) -> Images:
    """Change brightness, contrast, saturation and hue of each image in its own order."""
    images = images.clone()
    for turn in range(4):
        for number, change in enumerate((brightness, contrast, saturation, hue)):
            rows = (order[:, turn] == number).nonzero().flatten().to(images.device)
            if len(rows):
                images[rows] = change(images[rows], factors[rows, number])
    return images


def brightness(images: Images, factors: Tensor) -> Images:
    """Stretch values about black."""
    return (_each(factors) * images).clamp(0, 1)


def contrast(images: Images, factors: Tensor) -> Images:
    """Stretch values about the image's mean brightness."""
    middle = luma(images).mean(dim=(1, 2, 3), keepdim=True)
    return (middle + _each(factors) * (images - middle)).clamp(0, 1)


def saturation(images: Images, factors: Tensor) -> Images:
    """Stretch colors about their own brightness."""
    return (luma(images) + _each(factors) * (images - luma(images))).clamp(0, 1)


def hue(images: Images, turns: Tensor) -> Images:
    """Turn the circle of colors of HSV; a turn of 1 is all the way round."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, dim=1)
    value = images.amax(dim=1, keepdim=True)
    spread = value - images.amin(dim=1, keepdim=True)
    safe = torch.where(spread == 0, 1.0, spread)
    sixths = torch.where(green == value, 2 + (blue - red) / safe, 4 + (red - green) / safe)
    sixths = torch.where(red == value, (green - blue) / safe, sixths)
    offsets = images.new_tensor([5.0, 3.0, 1.0]).view(1, 3, 1, 1)
    k = (offsets + sixths + 6 * _each(turns)) % 6
    return value - spread * torch.minimum(k, 4 - k).clamp(0, 1)


def luma(images: Images) -> Float[Tensor, "images 1 height width"]:
    """Weigh the colors by how bright they look (ITU-R BT.601)."""
    weights = images.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    return images if images.shape[1] == 1 else (weights * images).sum(dim=1, keepdim=True)


def blur(images: Images, deviations_px: Tensor) -> Images:
    """Blur by a Gaussian over 3 x 3 pixels, edges mirrored; a deviation of 0 changes nothing."""
    side = torch.exp(-0.5 / deviations_px**2)  # 0 becomes e^-inf, 0
    side, middle = _each(side / (1 + 2 * side)), _each(1 / (1 + 2 * side))
    wide = functional.pad(images, (1, 1, 1, 1), mode="reflect")
    rows = middle * wide[..., 1:-1] + side * (wide[..., :-2] + wide[..., 2:])
    return middle * rows[:, :, 1:-1] + side * (rows[:, :, :-2] + rows[:, :, 2:])


def _each(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)
