"""The model that is evaluated: our own, or anybody's behind two functions.

`Encoders` is all that an evaluation asks of a model. A published model has both functions;
so has a small class around any other, such as one of open_clip or BioViL:

    class Theirs:
        def embed_images(self, images):       # (images, size, size) bytes, 0 black
            ...                              # -> (images, rows, columns, dim)
        def embed_sentences(self, texts):    # strings
            ...                              # -> (texts, dim)

    def build(weights: str) -> Theirs:       # evaluate.adapter.model: my_module:build
        ...

CLIP, SigLIP and BiomedCLIP need no class: `evaluate.adapter.model: transformers` reads a folder,
and `biovil` that of BioViL.

A model without regions gives one of each image: (images, 1, 1, dim). Vectors need not have
unit length. The two sides must be in one space. A third function, `embed_features`, gives what
linear probes read: (images, features), pooled before the map into that space.

Regions are held once, in the machine's memory, and scored by blocks on the model's device.

A model sees all of an image, or BioViL's central crop. Pixel (y, x) covers [x, x + 1) x [y, y + 1),
as boxes are measured.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, UInt8
from scipy import ndimage
from torch import Tensor
from torch.nn import functional

from medclip_dcl.core.errors import CheckpointError, QueryError
from medclip_dcl.core.progress import Progress
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.inference.grounding import axis_weights, upsample
from medclip_dcl.inference.predictor import Predictor
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.inference.zero_shot import prompt_texts, side_scores
from medclip_dcl.models.settings import (
    SimilarityConfig,
)
from medclip_dcl.models.similarity import image_sentence_scores

# Images in one forward pass: without gradients it fits wherever the model was trained.
_BATCH = 64
_SCORED = 2048  # images whose regions are on the model's device at a time
_EXACT_BYTES = 2**32  # of all regions; more are held in half precision, as an index holds them


Geometry = Literal["whole", "biovil"]


@runtime_checkable
class Encoders(Protocol):
    """Functions that a model must have to be evaluated."""

    def embed_images(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images rows columns dim"]:
        """Return the region vectors of prepared images, of whatever length."""

    def embed_sentences(self, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
        """Return the vectors of sentences, of whatever length."""


@runtime_checkable
class FeatureEncoders(Encoders, Protocol):
    """A model whose features before the shared space can be probed as well."""

    def embed_features(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images features"]:
        """Return the image encoder's features of prepared images, pooled."""


@dataclass(frozen=True)
class EvaluatedModel:
    """A model under evaluation, by the digest that names it."""

    digest: str
    encoders: Encoders
    similarity: SimilarityConfig
    gamma_squared: float
    """Scale of the score in softmaxes."""
    geometry: Geometry = "whole"
    """The part of an image that it was made for."""
    keeps_lengths: bool = False
    """Whether its region vectors keep their lengths, which weigh them in their mean."""

    @torch.inference_mode()
    def embed_images(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images rows columns dim"]:
        """Return the region vectors of square 8-bit images, all in one pass.

        Unit vectors, but for a model that `keeps_lengths`.
        """
        regions = self.encoders.embed_images(images)
        make = _checked if self.keeps_lengths else _unit
        return make(regions, len(images), 4, "embed_images")

    @property
    def has_features(self) -> bool:
        """Whether the encoders give features before the shared space."""
        return isinstance(self.encoders, FeatureEncoders)

    @torch.inference_mode()
    def embed_features(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images 1 1 features"]:
        """Return the image encoder's pooled features, as the one region of each image."""
        assert isinstance(self.encoders, FeatureEncoders), "ask has_features first"
        features = self.encoders.embed_features(images)
        return _checked(features, len(images), 2, "embed_features")[:, None, None]

    def embedding_of(self, features: Literal["space", "encoder"]) -> "Embed":
        """Return the function that makes what probes and heads read, as one region of each image.

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
        return _unit(self.encoders.embed_sentences(texts), len(texts), 2, "embed_sentences")

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
        """Return the level of each finding's margin, as `Predictor.offsets_of`.

        Of a model that is not ours the scale of the scores is not known, and so no level.
        """
        if isinstance(self.encoders, Predictor):
            return self.encoders.offsets_of(findings)
        return [None] * len(findings)


_BIOVIL_RESIZE_PX, _BIOVIL_CROP_PX = 512, 480  # the shorter side is resized, the centre is cropped
_BIOVIL_SMOOTHING = 1.5  # deviation of the Gaussian that smooths the grid of scores, cells


@dataclass(frozen=True)
class Window:
    """The part of an image that the model sees; pixels of the image, whole numbers."""

    x: int
    y: int
    width: int
    height: int


def window_of(geometry: Geometry, height_px: int, width_px: int) -> Window:
    """Return the part of an image that a geometry shows to the model.

    `whole`: all of the image; `biovil`: a central square of 480/512 of the shorter side, a margin
    that cannot be halved wider at the right and the bottom.

    Source: Boecking et al. 2022, as hi-ml's inference engine rounds.
    """
    if geometry == "whole":
        return Window(0, 0, width_px, height_px)
    side = max(1, int(_BIOVIL_CROP_PX * min(height_px, width_px) / _BIOVIL_RESIZE_PX))
    return Window((width_px - side) // 2, (height_px - side) // 2, side, side)


def cut_window(
    image: UInt8[np.ndarray, "size size"], window: Window, height_px: int, width_px: int
) -> UInt8[np.ndarray, "size size"]:
    """Cut a window of the original image out of the prepared one, stretched to the same square.

    Height and width are the original image's, all of which the prepared one shows.
    """
    if window == Window(0, 0, width_px, height_px):
        return image
    # Bilinear interpolation is separable: a matrix of weights for rows, one for columns.
    size = len(image)
    down = _section(window.y / height_px, window.height / height_px, size)
    across = _section(window.x / width_px, window.width / width_px, size)
    pixels: np.ndarray = np.rint(down @ image.astype(np.float32) @ across.T).astype(np.uint8)
    return pixels


def heatmap(
    grid: Float[np.ndarray, "rows columns"],
    geometry: Geometry,
    window: Window,
    height_px: int,
    width_px: int,
) -> Float[np.ndarray, "height width"]:
    """Spread a window's grid of scores over the image; `biovil` smooths the grid first.

    Pixels are NaN where the model saw nothing.

    Source: Boecking et al. 2022, as hi-ml's inference engine does it.
    """
    if geometry == "biovil":
        grid = ndimage.gaussian_filter(grid, sigma=_BIOVIL_SMOOTHING)
    spread = np.full((height_px, width_px), np.nan, dtype=np.float32)
    seen = upsample(grid, window.height, window.width)
    spread[window.y : window.y + window.height, window.x : window.x + window.width] = seen
    return spread


def scaled(window: Window, down: float, across: float, height_px: int, width_px: int) -> Window:
    """Bring a window to another size of its image: heights times `down`, widths times `across`."""
    x, y = (
        min(round(start * factor), limit - 1)
        for start, factor, limit in ((window.x, across, width_px), (window.y, down, height_px))
    )
    width = min(max(1, round(window.width * across)), width_px - x)
    return Window(x, y, width, min(max(1, round(window.height * down)), height_px - y))


def _section(start: float, length: float, size: int) -> np.ndarray:
    # Weights of a section's pixels, both axes of `size`, the section given as shares.
    return axis_weights((start + (np.arange(size) + 0.5) / size * length) * size - 0.5, size)


@dataclass(frozen=True)
class EncodedImages:
    """Images under evaluation, encoded."""

    image_ids: tuple[str, ...]
    subject_ids: tuple[str, ...]
    sizes_px: tuple[tuple[int, int], ...]
    """Height and width of each original image."""
    regions: Float[Tensor, "encoded rows columns dim"]
    """Unit vectors, but of a model that `keeps_lengths`, on the CPU; float16 where float32 would
    take more than 4 GiB."""
    geometry: Geometry = "whole"
    """Which part of each image the model sees, and how heatmaps are spread over it."""

    def window(self, image: int) -> Window:
        """Return the part of image number `image` that its grid covers, in its own pixels."""
        return window_of(self.geometry, *self.sizes_px[image])

    def ids_of(self, image: int) -> dict[str, str]:
        """Return `image_id` and `subject_id` of image number `image`, for a row of results."""
        return {"image_id": self.image_ids[image], "subject_id": self.subject_ids[image]}

    def select(self, chosen: Sequence[int]) -> "EncodedImages":
        """Return the images of these numbers, in that order."""
        rows = torch.tensor(chosen, dtype=torch.long, device=self.regions.device)
        return EncodedImages(
            tuple(self.image_ids[image] for image in chosen),
            tuple(self.subject_ids[image] for image in chosen),
            tuple(self.sizes_px[image] for image in chosen),
            self.regions[rows],
            self.geometry,
        )


Embed = Callable[[UInt8[np.ndarray, "images size size"]], Tensor]
"""Images -> (images, rows, columns, dim), all in one pass."""


def encode(
    embed: Embed,
    rows: Sequence[Mapping[str, Any]],
    images: PreparedImages,
    geometry: Geometry,
) -> EncodedImages:
    """Show a model the prepared images of the manifest's rows, in a geometry.

    `embed` is one of its `embed_images` and `embed_features`.
    """
    indices = [images.row_of[row["image_id"]] for row in rows]
    sizes = [images.original_size(index) for index in indices]
    held = torch.zeros(0, 1, 1, 1)
    with Progress("images encoded", len(indices), "image") as progress:
        for start in range(0, len(indices), _BATCH):
            chosen = slice(start, start + _BATCH)
            pixels = [
                cut_window(images.pixels(index), window_of(geometry, *size), *size)
                for index, size in zip(indices[chosen], sizes[chosen], strict=True)
            ]
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
        geometry=geometry,
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


def _unit(vectors: Tensor, count: int, axes: int, function: str) -> Tensor:
    return functional.normalize(_checked(vectors, count, axes, function), dim=-1)


_ASKED = {
    "embed_images": "(images, rows, columns, dim)",
    "embed_features": "(images, features)",
    "embed_sentences": "(texts, dim)",
}


def _checked(vectors: Tensor, count: int, axes: int, function: str) -> Tensor:
    if not isinstance(vectors, Tensor) or vectors.ndim != axes or len(vectors) != count:
        given = tuple(vectors.shape) if isinstance(vectors, Tensor) else "another value"
        raise CheckpointError(
            f"{function} gave {given} for {count}; it must give {_ASKED[function]} tensors"
        )
    vectors = vectors.float()
    if not bool(vectors.isfinite().all()):
        raise CheckpointError(f"{function} gave values that are not finite; repair the model")
    return vectors
