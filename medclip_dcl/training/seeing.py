"""Images and looks -> the views that a model sees: crop, rotation, flip, colours, blur."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

from medclip_dcl.model.preprocessing import normalise
from medclip_dcl.training.colours import blur, jitter_colours, take_colours_away
from medclip_dcl.training.looks import Looks


def see(
    images: UInt8[Tensor, "images channels size size"], looks: Looks
) -> Float[Tensor, "seen channels size size"]:
    """Show every view of a batch of images to a model.

    Args:
        images: values 0 to 255.
        looks: how each view of each image is seen.

    Returns:
        Normalised float32 views on the device of `images`, all first views before all
        second ones.
    """
    views = len(looks.top)
    values = images.to(torch.float32).div(255).repeat(views, 1, 1, 1)
    seen = cut_out(values, looks)
    seen = jitter_colours(seen, looks.order.flatten(0, 1), looks.factors.flatten(0, 1))
    seen = take_colours_away(seen, looks.greyed.flatten().to(seen.device))
    seen = blur(seen, looks.blur_px.flatten().to(seen.device))
    return normalise(seen * 255)


def cut_out(
    images: Float[Tensor, "seen channels size size"], looks: Looks
) -> Float[Tensor, "seen channels size size"]:
    """Cut a crop out of each image and scale it up to the whole size.

    Args:
        images: the image of each view, all first views before all second ones.
        looks: crops, rotations and flips.

    Returns:
        Bilinear samples; what lies outside a crop repeats its edge.
    """
    size = images.shape[-1]

    def each(values: Tensor) -> Tensor:
        return values.flatten().to(images.device, torch.float32).view(-1, 1, 1)

    # Offsets of output pixels from the crop's middle, in pixels of the image.
    along = (torch.arange(size, device=images.device) + 0.5) / size - 0.5
    down = along.view(1, -1, 1) * each(looks.height)
    right = along.view(1, 1, -1) * each(looks.width) * (1 - 2 * each(looks.flipped))
    turn = each(looks.angle)
    x = turn.cos() * right - turn.sin() * down + each(looks.left) + each(looks.width) / 2 - 0.5
    y = turn.sin() * right + turn.cos() * down + each(looks.top) + each(looks.height) / 2 - 0.5
    x = torch.minimum(x.maximum(each(looks.left)), each(looks.left + looks.width - 1))
    y = torch.minimum(y.maximum(each(looks.top)), each(looks.top + looks.height - 1))
    grid = torch.stack([(2 * x + 1) / size - 1, (2 * y + 1) / size - 1], dim=-1)
    return functional.grid_sample(
        images, grid, mode="bilinear", padding_mode="border", align_corners=False
    )
