"""An image set -> the batch of any step: images, and how their views are seen.

Axes
    batch  places in the global batch, over all processes
    local  places of this process: a slice of the batch

Only pixels and looks are cut to this process's share; eta and labels are kept for the
whole batch, as a function of the step.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Float32, Int64, UInt8
from torch import Tensor

from medclip_dcl.artifacts.image_set import ImageSplit
from medclip_dcl.config.views import ViewsConfig
from medclip_dcl.errors import ConfigError
from medclip_dcl.training.draws import Stream, generator_for
from medclip_dcl.training.looks import Looks, draw_looks
from medclip_dcl.training.sampler import EpochOrder


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
    looks: Looks
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
        looks = draw_looks(
            generator_for(self._seed, Stream.LOOK, step),
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
            looks=looks.at(self._mine),
            eta=self._eta[labels],
            labels=labels,
        )
