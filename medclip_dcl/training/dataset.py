"""Images, sentences, eta and columns of a split -> the batch of any step.

Axes
    batch  slots of the global batch, over all processes
    local  slots of this process: a slice of the batch

Only images and word pieces are cut to this process's share. Everything small is kept for
the whole batch: it is a function of the step, so nothing of it needs to be gathered.

Images are augmented by a random crop, brightness and contrast; never by a flip, which would turn
left into right, and reports say which side. The crop is cut while reading (bytes are moved, nothing
else); brightness and contrast are applied where the model runs, on bytes that were sent there as
they are.
"""

from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int64, UInt8
from torch import Tensor

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.rng import RngStream, generator_for
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.models.dual_encoder import trim_padding
from medclip_dcl.models.image_encoder import MEAN, SPREAD
from medclip_dcl.training.corpus import Corpus, TokenTable
from medclip_dcl.training.sampler import ImageTextSampler
from medclip_dcl.training.supervision import Supervision

_JITTER = 0.2  # half-width of the factors of brightness and contrast; the paper names neither
_LEAST_SHARE = 0.8  # of an image's side that a crop shows


@dataclass(frozen=True)
class CropParams:
    """Crop, brightness and contrast of each image of a batch."""

    top: Int64[np.ndarray, " images"]  # first row of the crop, pixels of the prepared image
    left: Int64[np.ndarray, " images"]  # first column of the crop, pixels of the prepared image
    brightness: Float[np.ndarray, " images"]  # factor of every grey value
    contrast: Float[np.ndarray, " images"]  # factor of the distance from the image's mean


def slack_px(size_px: int, input_px: int) -> int:
    """Return by how many pixels a crop of side `input_px` can move in an image of `size_px`."""
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


@dataclass(frozen=True)
class ImageTextBatch:
    """Images, texts and supervision of one step of a process."""

    step: int
    mine: slice  # this process's slots in the global batch
    study_ids: tuple[str, ...]  # study of each slot, for messages
    crops: UInt8[Tensor, "local 1 input_px input_px"]  # crops of the images, 0 black to 255 white
    brightness: Float[Tensor, " local"]
    contrast: Float[Tensor, " local"]
    input_ids: Int[Tensor, "local tokens"]  # word pieces, padded to the longest sentence of these
    attention_mask: Int[Tensor, "local tokens"]
    eta: Float[Tensor, " batch"]  # class probability of each sentence
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    """What the objective's options read, by name: a row for each slot of the batch."""

    def to(self, device: torch.device) -> "ImageTextBatch":
        """Copy the batch to a device."""
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        columns = {name: rows.to(device, non_blocking=True) for name, rows in self.columns.items()}
        return replace(self, **moved, columns=columns)

    def in_chunks(self, size: int) -> list["ImageTextBatch"]:
        """Cut what is encoded into parts of at most `size` pairs; what is of the batch stays."""
        parts = []
        for at in range(0, len(self.crops), size):
            own = {name: getattr(self, name)[at : at + size] for name in _OF_PROCESS}
            # What is dropped then depends on the part alone, not on whose batch it is cut from.
            ids, mask = trim_padding(own["input_ids"], own["attention_mask"])
            parts.append(replace(self, **{**own, "input_ids": ids, "attention_mask": mask}))
        return parts


class ImageTextDataset:
    """Makes the batch of any step, by whichever thread asks.

    `seed` is that of the augmentation, None: every image is seen in the middle, as it is. `mine`
    are this process's slots in the global batch, `input_px` the side of the crops.
    """

    def __init__(
        self,
        corpus: Corpus,
        supervision: Supervision,
        prepared: PreparedImages,
        tokens: TokenTable,
        sampler: ImageTextSampler,
        input_px: int,
        seed: int | None,
        mine: slice,
    ) -> None:
        self._corpus, self.supervision, self._prepared = corpus, supervision, prepared
        self.tokens, self._sampler = tokens, sampler
        self._input_px, self._seed, self._mine = input_px, seed, mine
        self._slack = slack_px(prepared.size_px, input_px)

    def batch(self, step: int) -> ImageTextBatch:
        """Make the batch of a step, from 0; a function of the step alone."""
        rows = self._sampler.draw(step)
        texts = self._corpus.text_of[rows.sentences]
        mine, slots = self._mine, len(rows.studies)
        # For all slots, so that a view does not depend on the number of processes.
        views = centre_crops(slots, self._slack)
        if self._seed is not None:
            generator = generator_for(self._seed, RngStream.VIEW, step)
            views = draw_crops(generator, slots, self._slack)
        # Pixels and word pieces are large: of these this process makes its own share alone.
        images = self._corpus.image_rows[rows.images[mine]].tolist()
        side = self._input_px
        crops = np.empty((len(images), 1, side, side), dtype=np.uint8)
        places = zip(crops, images, views.top[mine], views.left[mine], strict=True)
        for out, image, top, left in places:  # a memory-mapped image is read here
            out[0] = self._prepared.pixels(image)[top : top + side, left : left + side]
        ids, mask = self.tokens.padded(texts[mine])
        return ImageTextBatch(
            step=step,
            mine=mine,
            study_ids=tuple(self._corpus.study_ids[study] for study in rows.studies),
            crops=torch.from_numpy(crops),
            brightness=torch.from_numpy(views.brightness[mine]),
            contrast=torch.from_numpy(views.contrast[mine]),
            input_ids=ids,
            attention_mask=mask,
            eta=torch.from_numpy(self._corpus.eta[texts]),
            columns=_rows(self.supervision.of_texts, texts)
            | _rows(self.supervision.of_studies, rows.reports),
        )


_OF_PROCESS = ("crops", "brightness", "contrast", "input_ids", "attention_mask")


def _rows(tables: Mapping[str, Tensor], rows: Int[np.ndarray, " batch"]) -> dict[str, Tensor]:
    index = torch.from_numpy(rows)
    return {name: table[index] for name, table in tables.items()}


def prefetch(
    make: Callable[[int], ImageTextBatch], start: int, stop: int
) -> Generator[ImageTextBatch, None, None]:
    """Make the batches of steps [start, stop) in order, each while the one before is in use."""
    # One thread suffices: reading and cropping a batch takes a small part of a step.
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        pending: Future[ImageTextBatch] | None = None
        for step in range(start, stop):
            batch = (pending or pool.submit(make, step)).result()
            pending = pool.submit(make, step + 1) if step + 1 < stop else None
            yield batch
