"""How each view of an image is seen: drawn as plain numbers, applied elsewhere.

Axes
    views   views of one image
    images  places in the global batch, or this process's slice of it

Everything is drawn for the whole batch from the generator of one step, so what a place
gets is a function of seed, step and place: no state to save, and no process count in it.

Changes of brightness, contrast, saturation and hue, grey and blur, a batch at a time.

Every function takes values in [0, 1] and one factor an image, and treats each image by
itself. Grey images have no saturation and no hue: these leave them as they are.

Images and looks -> the views that a model sees: crop, rotation, flip, colours, blur.

Class shares of a thinned image set -> eta of each class.

An image set -> the batch of any step: images, and how their views are seen.

Axes
    batch  places in the global batch, over all processes
    local  places of this process: a slice of the batch

Only pixels and looks are cut to this process's share; eta and labels are kept for the
whole batch, as a function of the step.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64, UInt8
from torch import Tensor
from torch.nn import functional

from medclip_dcl.errors import ConfigError
from medclip_dcl.image_only.artifacts import ImageSplit
from medclip_dcl.image_only.settings import AugmentConfig, ViewsConfig
from medclip_dcl.models.preprocessing import normalise
from medclip_dcl.rng import RngStream, generator_for
from medclip_dcl.training.sampler import EpochOrder

_TRIES = 10
_RATIO = (3 / 4, 4 / 3)
_ORDERS = np.array(list(permutations(range(4))), dtype=np.int64)
_BLUR_PX = (0.1, 2.0)


@dataclass(frozen=True)
class AugmentationParams:
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

    def at(self, indices: slice) -> "AugmentationParams":
        """Take a part of the batch.

        Args:
            indices: the part.

        Returns:
            The looks of that part.
        """
        return AugmentationParams(*(value[:, indices] for value in vars(self).values()))


def draw_augmentation(
    generator: np.random.Generator, views: int, images: int, size_px: int, settings: AugmentConfig
) -> AugmentationParams:
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
    return AugmentationParams(
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


def adjust_brightness(images: Images, factors: Factors) -> Images:
    """Multiply every value.

    Args:
        images: values in [0, 1].
        factors: at least 0; 1 changes nothing.

    Returns:
        Values in [0, 1].
    """
    return (images * _each(factors)).clamp(0, 1)


def adjust_contrast(images: Images, factors: Factors) -> Images:
    """Stretch values about the image's mean brightness.

    Args:
        images: values in [0, 1].
        factors: at least 0; 1 changes nothing, 0 leaves an even grey.

    Returns:
        Values in [0, 1].
    """
    middle = luma(images).mean(dim=(1, 2, 3), keepdim=True)
    return (middle + _each(factors) * (images - middle)).clamp(0, 1)


def adjust_saturation(images: Images, factors: Factors) -> Images:
    """Stretch colours about their own brightness.

    Args:
        images: values in [0, 1].
        factors: at least 0; 1 changes nothing, 0 leaves grey.

    Returns:
        Values in [0, 1].
    """
    grey = luma(images)
    return (grey + _each(factors) * (images - grey)).clamp(0, 1)


def adjust_hue(images: Images, turns: Factors) -> Images:
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


def random_grayscale(images: Images, greyed: Bool[Tensor, " images"]) -> Images:
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
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    adjust_hue,
)


def color_jitter(
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
    for index in range(len(_CHANGES)):
        for number, change in enumerate(_CHANGES):
            rows = (order[:, index] == number).nonzero().flatten()
            if len(rows):
                rows = rows.to(images.device)
                images[rows] = change(images[rows], factors[rows, number])
    return images


def _each(factors: Factors) -> Float[Tensor, "images 1 1 1"]:
    return factors.view(-1, 1, 1, 1)


def apply_augmentation(
    images: UInt8[Tensor, "images channels size size"], augmentation: AugmentationParams
) -> Float[Tensor, "seen channels size size"]:
    """Show every view of a batch of images to a model.

    Args:
        images: values 0 to 255.
        augmentation: how each view of each image is seen.

    Returns:
        Normalised float32 views on the device of `images`, all first views before all
        second ones.
    """
    views = len(augmentation.top)
    values = images.to(torch.float32).div(255).repeat(views, 1, 1, 1)
    seen = cut_out(values, augmentation)
    seen = color_jitter(seen, augmentation.order.flatten(0, 1), augmentation.factors.flatten(0, 1))
    seen = random_grayscale(seen, augmentation.greyed.flatten().to(seen.device))
    seen = blur(seen, augmentation.blur_px.flatten().to(seen.device))
    return normalise(seen * 255)


def cut_out(
    images: Float[Tensor, "seen channels size size"], augmentation: AugmentationParams
) -> Float[Tensor, "seen channels size size"]:
    """Cut a crop out of each image and scale it up to the whole size.

    Args:
        images: the image of each view, all first views before all second ones.
        augmentation: crops, rotations and flips.

    Returns:
        Bilinear samples; what lies outside a crop repeats its edge.
    """
    size = images.shape[-1]

    def each(values: Tensor) -> Tensor:
        return values.flatten().to(images.device, torch.float32).view(-1, 1, 1)

    # Offsets of output pixels from the crop's middle, in pixels of the image.
    along = (torch.arange(size, device=images.device) + 0.5) / size - 0.5
    down = along.view(1, -1, 1) * each(augmentation.height)
    right = along.view(1, 1, -1) * each(augmentation.width) * (1 - 2 * each(augmentation.flipped))
    turn = each(augmentation.angle)
    x = (
        turn.cos() * right
        - turn.sin() * down
        + each(augmentation.left)
        + each(augmentation.width) / 2
        - 0.5
    )
    y = (
        turn.sin() * right
        + turn.cos() * down
        + each(augmentation.top)
        + each(augmentation.height) / 2
        - 0.5
    )
    x = torch.minimum(
        x.maximum(each(augmentation.left)), each(augmentation.left + augmentation.width - 1)
    )
    y = torch.minimum(
        y.maximum(each(augmentation.top)), each(augmentation.top + augmentation.height - 1)
    )
    grid = torch.stack([(2 * x + 1) / size - 1, (2 * y + 1) / size - 1], dim=-1)
    return functional.grid_sample(
        images, grid, mode="bilinear", padding_mode="border", align_corners=False
    )


def class_eta(
    settings: ViewsConfig,
    counts: Sequence[int],
    is_thinned: Sequence[bool],
    r: float,
    constant: float,
) -> Float32[Tensor, " classes"]:
    """Give the eta of an anchor by its class.

    Args:
        settings: which eta.
        counts: training images of each class.
        is_thinned: whether each class was thinned.
        r: share of a thinned class that was kept.
        constant: the value where eta is `constant`.

    Returns:
        Chance that a random image is of the anchor's class, in [0, 1): the same for all
        classes unless eta is `class_share`.

    Source: Wang et al. 2023, Section 3.1: with five of ten classes thinned
        eta_Low = .2 r / (1 + r) and eta_High = .2 / (1 + r).
    """
    if settings.eta == "class_share":
        present = torch.tensor(list(counts), dtype=torch.float64)
        return (present / present.sum()).float()
    thinned = sum(is_thinned)
    classes = len(is_thinned) - thinned + r * thinned
    value = {"low": r / classes, "high": 1 / classes, "constant": constant}[settings.eta]
    return torch.full((len(is_thinned),), value)


@dataclass(frozen=True)
class ViewBatch:
    """What a process needs for one step."""

    step: int
    mine: slice
    """This process's places in the global batch."""
    item_ids: tuple[str, ...]
    """Image of each place, for messages."""
    pixels: UInt8[Tensor, "local channels size size"]
    """The images themselves, 0 to 255."""
    augmentation: AugmentationParams
    """How each view of them is seen; stays on the CPU."""
    eta: Float[Tensor, " batch"]
    """Chance that a random image is of the same class."""
    labels: Int64[Tensor, " batch"]
    """Class of each image; read by objectives that know labels alone."""

    def to(self, device: torch.device) -> "ViewBatch":
        """Move the tensors.

        Args:
            device: where to.

        Returns:
            The batch there.
        """
        return replace(
            self,
            pixels=self.pixels.to(device, non_blocking=True),
            eta=self.eta.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
        )


class ViewBatches:
    """Makes the batch of any step, by whichever thread asks.

    Args:
        images: the images.
        eta: chance that a random image is of each class.
        settings: the views.
        global_batch: images in a batch, over all processes.
        seed: seed of the order and of the looks.
        mine: this process's places in the global batch.

    Attributes:
        steps_per_epoch: full global batches in one pass over the images.

    Raises:
        ConfigError: there are fewer images than places.
    """

    def __init__(
        self,
        images: ImageSplit,
        eta: Float32[Tensor, " classes"],
        settings: ViewsConfig,
        global_batch: int,
        seed: int,
        mine: slice,
    ) -> None:
        if len(images.labels) < global_batch:
            raise ConfigError(
                f"train.global_batch {global_batch} exceeds the {len(images.labels)} images of a "
                "split; a batch holds an image once: lower it or keep more images"
            )
        self._images, self._settings, self._seed, self._mine = images, settings, seed, mine
        self._labels = torch.from_numpy(images.labels)
        self._pixels = torch.from_numpy(images.pixels)
        self._eta, self._global_batch = eta, global_batch
        self._order = EpochOrder(len(images.labels), global_batch, seed)
        self.steps_per_epoch = self._order.steps_per_epoch

    def batch(self, step: int) -> ViewBatch:
        """Make the batch of a step.

        Args:
            step: the step, from 0.

        Returns:
            The batch; a function of the step alone.
        """
        items = self._order.draw(step)
        augmentation = draw_augmentation(
            generator_for(self._seed, RngStream.LOOK, step),
            1 + self._settings.M,
            self._global_batch,
            self._pixels.shape[-1],
            self._settings.augment,
        )
        labels = self._labels[torch.from_numpy(items)]
        return ViewBatch(
            step=step,
            mine=self._mine,
            item_ids=tuple(self._images.image_ids[item] for item in items),
            pixels=self._pixels[torch.from_numpy(items[self._mine])],
            augmentation=augmentation.at(self._mine),
            eta=self._eta[labels],
            labels=labels,
        )
