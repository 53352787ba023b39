"""Images, sentences, eta and supervision of a split -> the batch of any step.

Axes
    batch  slots of the global batch, over all processes
    local  slots of this process: a slice of the batch

Only images and word pieces are cut to this process's share. Everything small is kept for
the whole batch: it is a function of the step, so nothing of it needs to be gathered.
"""

from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int8, UInt8
from torch import Tensor

from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.models.dual_encoder import trim_padding
from medclip_dcl.retrieval.embeddings import map_array
from medclip_dcl.rng import RngStream, generator_for
from medclip_dcl.training.augment import centre_crops, cut, draw_crops, slack_px
from medclip_dcl.training.corpus import Corpus, TokenTable
from medclip_dcl.training.sampler import ImageTextSampler
from medclip_dcl.training.supervision import Supervision


@dataclass(frozen=True)
class ImageTextBatch:
    """Images, texts and supervision of one step of a process."""

    step: int
    mine: slice
    """This process's slots in the global batch."""
    study_ids: tuple[str, ...]
    """Study of each slot, for messages."""
    crops: UInt8[Tensor, "local 1 input_px input_px"]
    """Crops of the images, 0 black to 255 white."""
    brightness: Float[Tensor, " local"]
    contrast: Float[Tensor, " local"]
    input_ids: Int[Tensor, "local tokens"]
    """Word pieces, padded to the longest sentence of these."""
    attention_mask: Int[Tensor, "local tokens"]
    eta: Float[Tensor, " batch"]
    """Class probability of each sentence."""
    sentence_codes: Int8[Tensor, "batch codes"] | None
    """Claims of each sentence."""
    report_codes: Int8[Tensor, "batch codes"] | None
    """Claims of each report."""
    labels: Bool[Tensor, "batch findings"] | None
    """Findings that each report's labels call present."""
    zones: Int8[Tensor, " batch"] | None = None
    """Third of the lung that each sentence names."""
    text_vectors: Float[Tensor, "batch dim"] | None = None
    """Unit vector of each sentence, by which texts are compared."""
    image_features: Float[Tensor, "local channels rows columns"] | None = None
    """What a frozen encoder gives for each image, in place of a crop."""
    text_features: Float[Tensor, "local width"] | None = None
    """What a frozen encoder gives for each sentence."""

    def to(self, device: torch.device) -> "ImageTextBatch":
        """Copy the batch to a device."""
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **moved)

    def in_chunks(self, size: int) -> list["ImageTextBatch"]:
        """Cut what is encoded into parts of at most `size` pairs; what is of the batch stays."""
        local = {
            name: getattr(self, name) for name in _OF_PROCESS if getattr(self, name) is not None
        }
        parts = []
        for at in range(0, len(self.crops), size):
            own = {name: value[at : at + size] for name, value in local.items()}
            # What is dropped then depends on the part alone, not on whose batch it is cut from.
            ids, mask = trim_padding(own["input_ids"], own["attention_mask"])
            parts.append(replace(self, **{**own, "input_ids": ids, "attention_mask": mask}))
        return parts


class SplitFeatures:
    """Features of one split, mapped into memory."""

    def __init__(self, folder: Path, split: str) -> None:
        self._images = _Rows(folder, f"{split}-images")
        self._texts = _Rows(folder, f"{split}-texts")

    def images(
        self, images: Int[np.ndarray, " local"]
    ) -> Float[Tensor, "local channels rows columns"]:
        """Give the maps of images of the corpus, float32."""
        return self._images.of(images)

    def texts(self, texts: Int[np.ndarray, " local"]) -> Float[Tensor, "local width"]:
        """Give the states of distinct texts of the corpus, float32."""
        return self._texts.of(texts)


class _Rows:
    # Rows of arrays that lie in several files, all but the last of one length.

    def __init__(self, folder: Path, name: str) -> None:
        self._shards = [map_array(file, np.float16) for file in sorted(folder.glob(f"{name}-*"))]

    def of(self, rows: Int[np.ndarray, " local"]) -> Tensor:
        size = len(self._shards[0])
        found = [self._shards[row // size][row % size] for row in rows.tolist()]
        return torch.from_numpy(np.stack(found)).float()


class ImageTextDataset:
    """Makes the batch of any step, by whichever thread asks.

    `seed` is that of the augmentation, None: every image is seen in the middle, as it is. `mine`
    are this process's slots in the global batch, `input_px` the side of the crops. Where the
    encoders are frozen, their `features` stand for crops and word pieces.
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
        features: SplitFeatures | None = None,
    ) -> None:
        self._features = features
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
        if self._seed is None:
            views = centre_crops(slots, self._slack)
        else:
            generator = generator_for(self._seed, RngStream.VIEW, step)
            views = draw_crops(generator, slots, self._slack)
        images = self._corpus.image_rows[rows.images[mine]].tolist()
        features, side = self._features, 0 if self._features else self._input_px
        crops = np.empty((len(images), 1, side, side), dtype=np.uint8)
        if features is None:
            for out, image, top, left in zip(
                crops, images, views.top[mine], views.left[mine], strict=True
            ):
                cut(self._prepared.pixels(image), int(top), int(left), out[0])
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
            sentence_codes=_rows(self.supervision.sentence_codes, texts),
            report_codes=_rows(self.supervision.report_codes, rows.reports),
            labels=_rows(self.supervision.labels, rows.reports),
            zones=_rows(self.supervision.zones, texts),
            text_vectors=_rows(self.supervision.text_vectors, texts),
            image_features=None if features is None else features.images(rows.images[mine]),
            text_features=None if features is None else features.texts(texts[mine]),
        )


_OF_PROCESS = (
    *("crops", "brightness", "contrast", "input_ids", "attention_mask"),
    *("image_features", "text_features"),
)


def _rows(table: Tensor | None, rows: Int[np.ndarray, " batch"]) -> Tensor | None:
    return None if table is None else table[torch.from_numpy(rows)]


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
