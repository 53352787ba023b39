"""A model under evaluation, and the images that it is shown.

Regions are held once, in the machine's memory, and scored by blocks on the model's device.

A model sees all of an image, or the part that `images.fit` shows it. Pixel (y, x) covers
[x, x + 1) x [y, y + 1), as boxes are measured.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

from medclip_dcl.core.errors import QueryError
from medclip_dcl.core.progress import Progress
from medclip_dcl.data.grayscale import Window, window
from medclip_dcl.data.limits import Fit
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.inference.predictor import Predictor
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.inference.zero_shot import prompt_texts, side_scores
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.models.similarity import image_sentence_scores

# Images in one forward pass: without gradients it fits wherever the model was trained.
_BATCH = 64
_SCORED = 2048  # images whose regions are on the model's device at a time
_EXACT_BYTES = 2**32  # of all regions; more are held in half precision, as an index holds them


@runtime_checkable
class Encoders(Protocol):
    """Functions that an evaluation asks of a model: a `Predictor`, or a stand-in of a test."""

    def embed_images(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images rows columns dim"]:
        """Return the region vectors of prepared images, of whatever length."""

    def embed_sentences(self, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
        """Return the vectors of sentences, of whatever length."""


@dataclass(frozen=True)
class EvaluatedModel:
    """A model under evaluation, by the digest that names it."""

    digest: str
    encoders: Encoders
    similarity: SimilarityConfig
    gamma_squared: float
    """Scale of the score in softmaxes."""

    @torch.inference_mode()
    def embed_images(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images rows columns dim"]:
        """Return the region vectors of square 8-bit images, all in one pass.

        Unit vectors, but for a similarity that weighs them in their mean by their lengths.
        """
        regions = self.encoders.embed_images(images).float()
        return (
            regions if self.similarity.kind == "biovil" else functional.normalize(regions, dim=-1)
        )

    @torch.inference_mode()
    def embed_regions(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images rows columns dim"]:
        """Return the regions that sentences are located by: those of `embed_images`, or patches."""
        if self.has_regions_apart and isinstance(self.encoders, Predictor):
            return self.encoders.embed_regions(images)
        return self.embed_images(images)

    @property
    def has_regions_apart(self) -> bool:
        """Whether an image is scored by its one own vector, and located by its patches, if any."""
        own = self.encoders
        return isinstance(own, Predictor) and own.model.image.is_pooled

    @torch.inference_mode()
    def embed_features(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images 1 1 features"]:
        """Return the image encoder's pooled features, as the one region of each image."""
        assert isinstance(self.encoders, Predictor)
        return self.encoders.embed_features(images)[:, None, None]

    def embedding_of(self, features: Literal["space", "encoder"]) -> "Embed":
        """Return the function that makes what heads read, as one region of each image.

        Twenty thousand images with all their regions would not fit.
        """
        if features == "encoder":
            return self.embed_features
        return lambda images: self.embed_images(images).mean(dim=(1, 2), keepdim=True)

    @torch.inference_mode()
    def embed_sentences(self, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
        """Return the unit vectors of sentences, in their order; QueryError where one is blank."""
        if not texts or not all(text.strip() for text in texts):
            raise QueryError("a sentence is empty; give text with at least one word")
        return functional.normalize(self.encoders.embed_sentences(texts).float(), dim=-1)

    @torch.inference_mode()
    def score(
        self,
        regions: Float[Tensor, "images rows columns dim"],
        sentences: Float[Tensor, "texts dim"],
    ) -> Float[Tensor, "texts images"]:
        """Score every image against every sentence: f in [-1, 1], of unit vectors.

        By blocks of images, on the sentences' device; the scores are where the regions are.
        """
        parts = [
            image_sentence_scores(
                block.to(sentences.device).flatten(1, 2), sentences, self.similarity
            ).to(regions.device)
            for block in torch.split(regions, _SCORED)
        ]
        return torch.cat(parts, dim=1)

    def margins(
        self, regions: Float[Tensor, "images rows columns dim"], findings: Sequence[Finding]
    ) -> Float[Tensor, "findings images"]:
        """Compare the prompts of each finding: f(positive) - f(negative), in [-2, 2]."""
        sides = self.side_scores(regions, findings)
        return sides[0::2] - sides[1::2]

    def side_scores(
        self, regions: Float[Tensor, "images rows columns dim"], findings: Sequence[Finding]
    ) -> Float[Tensor, "sides images"]:
        """Score the prompts of each finding, averaged by side: positive, then negative.

        In the place of a negative that a finding has not stands `missing_sides`.
        """
        prompts = self.embed_sentences(prompt_texts(findings))
        return side_scores(self.score(regions, prompts), findings, self.missing_sides(findings))

    def missing_sides(self, findings: Sequence[Finding]) -> list[float]:
        """Return what stands for the negative of findings without one: the level of the positive.

        0 where the model has no level, which changes neither AUC nor a chosen threshold.
        """
        if isinstance(self.encoders, Predictor) and not all(item.negative for item in findings):
            return [level or 0.0 for level in self.encoders.negative_levels(findings)]
        return [0.0] * len(findings)

    def offsets_of(self, findings: Sequence[Finding]) -> list[float | None]:
        """Return the level of each finding's margin, as `Predictor.offsets_of`."""
        if isinstance(self.encoders, Predictor):
            return self.encoders.offsets_of(findings)
        return [None] * len(findings)


@dataclass(frozen=True)
class EncodedImages:
    """Images under evaluation, encoded."""

    image_ids: tuple[str, ...]
    subject_ids: tuple[str, ...]
    sizes_px: tuple[tuple[int, int], ...]
    """Height and width of each original image."""
    regions: Float[Tensor, "encoded rows columns dim"]
    """As `embed_images` of the model, on the CPU; float16 where float32 would take more than
    4 GiB."""
    size_px: int = 1
    """Side of the prepared squares."""
    fit: Fit | None = None
    """How images were brought to them: which part of each the model sees."""

    def window(self, image: int) -> Window:
        """Return the part of image number `image` that its grid covers, in its own pixels."""
        return window(*self.sizes_px[image], self.size_px, self.fit)

    def ids_of(self, image: int) -> dict[str, str]:
        """Return `image_id` and `subject_id` of image number `image`, for a row of results."""
        return {"image_id": self.image_ids[image], "subject_id": self.subject_ids[image]}

    def select(self, chosen: Sequence[int]) -> "EncodedImages":
        """Return the images of these numbers, in that order."""
        rows = torch.tensor(chosen, dtype=torch.long, device=self.regions.device)
        return replace(
            self,
            image_ids=tuple(self.image_ids[image] for image in chosen),
            subject_ids=tuple(self.subject_ids[image] for image in chosen),
            sizes_px=tuple(self.sizes_px[image] for image in chosen),
            regions=self.regions[rows],
        )


Embed = Callable[[UInt8[np.ndarray, "images size size"]], Tensor]
"""Images -> (images, rows, columns, dim), all in one pass."""


def encode(
    embed: Embed,
    rows: Sequence[Mapping[str, Any]],
    images: PreparedImages,
    fit: Fit | None,
) -> EncodedImages:
    """Show a model the prepared images of the manifest's rows, which were prepared by a fit.

    `embed` is one of its `embed_images` and `embed_features`.
    """
    indices = [images.row_of[row["image_id"]] for row in rows]
    sizes = [images.original_size(index) for index in indices]
    held = torch.zeros(0, 1, 1, 1)
    with Progress("images encoded", len(indices), "image") as progress:
        for start in range(0, len(indices), _BATCH):
            chosen = slice(start, start + _BATCH)
            pixels = [images.pixels(index) for index in indices[chosen]]
            part = embed(np.stack(pixels))
            if not start:
                held = _room_for(len(indices), part)
            held[chosen] = part.cpu()
            progress.advance(len(pixels))
    return EncodedImages(
        image_ids=tuple(row["image_id"] for row in rows),
        subject_ids=tuple(row["subject_id"] for row in rows),
        sizes_px=tuple(sizes),
        regions=held,
        size_px=images.size_px,
        fit=fit,
    )


def _room_for(images: int, part: Tensor, exact_bytes: int = _EXACT_BYTES) -> Tensor:
    # All of it before the first image: a split that does not fit fails at once, and not twice.
    shape = (images, *part.shape[1:])
    fits = math.prod(shape) * torch.float32.itemsize <= exact_bytes
    return torch.empty(shape, dtype=torch.float32 if fits else torch.float16)


def evaluated_model(predictor: Predictor) -> EvaluatedModel:
    """Evaluate a published model with its own similarity and scale."""
    gamma_squared = float(predictor.model.gamma.detach() ** 2)
    return EvaluatedModel(predictor.digest, predictor, predictor.model.similarity, gamma_squared)
