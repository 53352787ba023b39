"""Changes of brightness, contrast, saturation and hue, grey and blur, a batch at a time.

Every function takes values in [0, 1] and one factor an image, and treats each image by
itself. Grey images have no saturation and no hue: these leave them as they are.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional

Images = Float[Tensor, "images channels height width"]
Factors = Float[Tensor, " images"]

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601


def luma(images: Images) -> Float[Tensor, "images 1 height width"]:
    """Weigh the colours by how bright they look.

    Args:
        images: grey or red, green and blue, in [0, 1].

    Returns:
        Brightness, in [0, 1].

    Source: ITU-R BT.601.
    """
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(dim=1)
    return (_LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue).unsqueeze(1)


def change_brightness(images: Images, factors: Factors) -> Images:
    """Multiply every value.

    Args:
        images: values in [0, 1].
        factors: at least 0; 1 changes nothing.

    Returns:
        Values in [0, 1].
    """
    return (images * _each(factors)).clamp(0, 1)


def change_contrast(images: Images, factors: Factors) -> Images:
    """Stretch values about the image's mean brightness.

    Args:
        images: values in [0, 1].
        factors: at least 0; 1 changes nothing, 0 leaves an even grey.

    Returns:
        Values in [0, 1].
    """
    middle = luma(images).mean(dim=(1, 2, 3), keepdim=True)
    return (middle + _each(factors) * (images - middle)).clamp(0, 1)


def change_saturation(images: Images, factors: Factors) -> Images:
    """Stretch colours about their own brightness.

    Args:
        images: values in [0, 1].
        factors: at least 0; 1 changes nothing, 0 leaves grey.

    Returns:
        Values in [0, 1].
    """
    grey = luma(images)
    return (grey + _each(factors) * (images - grey)).clamp(0, 1)


def turn_hue(images: Images, turns: Factors) -> Images:
    """Turn the circle of colours.

    Args:
        images: values in [0, 1].
        turns: 1 is all the way round.

    Returns:
        The images with the same saturation and value, in the sense of HSV.
    """
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(dim=1)
    value, lowest = images.amax(dim=1), images.amin(dim=1)
    spread = value - lowest
    safe = torch.where(spread == 0, 1.0, spread)
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = hue + 6 * turns.view(-1, 1, 1)

    def channel(offset: float) -> Tensor:
        k = (offset + hue) % 6
        return value - spread * torch.minimum(k, 4 - k).clamp(0, 1)

    return torch.stack([channel(5.0), channel(3.0), channel(1.0)], dim=1)


def take_colours_away(images: Images, greyed: Bool[Tensor, " images"]) -> Images:
    """Replace the colours of some images by their brightness.

    Args:
        images: values in [0, 1].
        greyed: which images.

    Returns:
        Values in [0, 1].
    """
    return torch.where(greyed.view(-1, 1, 1, 1), luma(images), images)


def blur(images: Images, deviations_px: Factors) -> Images:
    """Blur each image by a Gaussian over 3 x 3 pixels; the edge is mirrored.

    Args:
        images: values in [0, 1].
        deviations_px: deviation of the Gaussian, pixels; 0 changes nothing.

    Returns:
        Values in [0, 1].
    """
    side = torch.exp(-0.5 / deviations_px.double() ** 2).to(images)  # 0 becomes e^-inf, 0
    side, middle = _each(side / (1 + 2 * side)), _each(1 / (1 + 2 * side))
    wide = functional.pad(images, (1, 1, 1, 1), mode="reflect")
    rows = middle * wide[..., 1:-1] + side * (wide[..., :-2] + wide[..., 2:])
    return middle * rows[:, :, 1:-1] + side * (rows[:, :, :-2] + rows[:, :, 2:])


_CHANGES: tuple[Callable[[Images, Factors], Images], ...] = (
    change_brightness,
    change_contrast,
    change_saturation,
    turn_hue,
)


def jitter_colours(
    images: Images,
    order: Int64[Tensor, "images four"],
    factors: Float[Tensor, "images four"],
) -> Images:
    """Apply brightness 0, contrast 1, saturation 2 and hue 3 to each image in its own order.

    Args:
        images: values in [0, 1].
        order: which change comes first, second, third and last; -1: none. On the CPU, so
            that no device is waited for.
        factors: factor of each change.

    Returns:
        Values in [0, 1].
    """
    images = images.clone()
    factors = factors.to(images.device)
    for place in range(len(_CHANGES)):
        for number, change in enumerate(_CHANGES):
            rows = (order[:, place] == number).nonzero().flatten()
            if len(rows):
                rows = rows.to(images.device)
                images[rows] = change(images[rows], factors[rows, number])
    return images


def _each(factors: Factors) -> Float[Tensor, "images 1 1 1"]:
    return factors.view(-1, 1, 1, 1)
