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

Public checkpoints need no class: `medclip adopt` makes a package of one, which `evaluate.model`
names.

A model without regions gives one of each image: (images, 1, 1, dim). Vectors need not have
unit length. The two sides must be in one space. A third function, `embed_features`, gives what
linear probes read: (images, features), pooled before the map into that space.

Regions are held once, in the machine's memory, and scored by blocks on the model's device.

A model sees all of an image, or the part that `images.fit` shows it. Pixel (y, x) covers
[x, x + 1) x [y, y + 1), as boxes are measured.
"""

import hashlib
import math
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, UInt8
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional

from medclip_dcl.core.errors import CheckpointError, ConfigError, QueryError
from medclip_dcl.core.files import sha256_file
from medclip_dcl.core.progress import Progress
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.data.grayscale import Window, window
from medclip_dcl.data.limits import Fit
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.evaluation import EvaluationConfig
from medclip_dcl.inference.predictor import Predictor
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.inference.zero_shot import prompt_texts, side_scores
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.models.similarity import image_sentence_scores

# Images in one forward pass: without gradients it fits wherever the model was trained.
_BATCH = 64
_SCORED = 2048  # images whose regions are on the model's device at a time
_EXACT_BYTES = 2**32  # of all regions; more are held in half precision, as an index holds them
# Scale of an adapted model's scores: CLIP's largest logit scale. It moves no metric, only the
# `score` that stands next to each margin.
_ADAPTED_GAMMA_SQUARED = 100.0


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

    @torch.inference_mode()
    def embed_images(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images rows columns dim"]:
        """Return the region vectors of square 8-bit images, all in one pass.

        Unit vectors, but for a similarity that weighs them in their mean by their lengths.
        """
        regions = self.encoders.embed_images(images)
        make = _checked if self.similarity.kind == "biovil" else _unit
        return make(regions, len(images), 4, "embed_images")

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
        assert isinstance(self.encoders, FeatureEncoders)
        features = self.encoders.embed_features(images)
        return _checked(features, len(images), 2, "embed_features")[:, None, None]

    def embed_means(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images 1 1 dim"]:
        """Return the mean region, which heads read, as the one region of each image.

        Twenty thousand images with all their regions would not fit.
        """
        return self.embed_images(images).mean(dim=(1, 2), keepdim=True)

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

        The level of the positive stands for a negative that a finding has not: 0 where the model
        has no level, which changes neither AUC nor a chosen threshold.
        """
        missing = [0.0] * len(findings)
        if isinstance(self.encoders, Predictor) and not all(item.negative for item in findings):
            missing = [level or 0.0 for level in self.encoders.negative_levels(findings)]
        prompts = self.embed_sentences(prompt_texts(findings))
        return side_scores(self.score(regions, prompts), findings, missing)

    def offsets_of(self, findings: Sequence[Finding]) -> list[float | None]:
        """Return the level of each finding's margin, as `Predictor.offsets_of`.

        Of a model that is not ours the scale of the scores is not known, and so no level.
        """
        if isinstance(self.encoders, Predictor):
            return self.encoders.offsets_of(findings)
        return [None] * len(findings)


def adapter_digest(config: EvaluationConfig) -> str:
    """Name the model of `evaluate.adapter`: SHA-256 of the callable's name and its weights."""
    digest = hashlib.sha256(config.evaluate.adapter.model.encode())
    weights = _adapter_weights(config)
    if weights is not None:
        for file in sorted(weights.rglob("*")) if weights.is_dir() else [weights]:
            if file.is_file():
                digest.update(f"{file.name} {sha256_file(file)}".encode())
    return digest.hexdigest()


def load_adapter(config: EvaluationConfig) -> EvaluatedModel:
    """Build the model that `evaluate.adapter` names; ConfigError where that is impossible."""
    name, weights = config.evaluate.adapter.model, _adapter_weights(config)
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module in the current folder, as `python -m` finds it
    try:
        build = pkgutil.resolve_name(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise ConfigError(
            f"evaluate.adapter.model {name!r} cannot be imported ({error}); put its module on "
            "the path"
        ) from error
    if not callable(build):
        raise ConfigError(f"evaluate.adapter.model {name!r} is not callable; name a function")
    encoders = build(*([] if weights is None else [str(weights)]))
    if not isinstance(encoders, Encoders):
        raise ConfigError(f"what {name} builds has no embed_images or no embed_sentences; add it")
    if config.evaluate.probe_images and not isinstance(encoders, FeatureEncoders):
        raise ConfigError(
            f"what {name} builds has no embed_features, which a probe needs; add it, or set "
            "evaluate.probe_images=0"
        )
    kind = getattr(encoders, "similarity", "global")
    try:
        similarity = SimilarityConfig(kind=kind)
    except ValidationError as error:
        raise ConfigError(
            f"what {name} builds has similarity {kind!r}; give a model.similarity.kind"
        ) from error
    return EvaluatedModel(adapter_digest(config), encoders, similarity, _ADAPTED_GAMMA_SQUARED)


def _adapter_weights(config: EvaluationConfig) -> Path | None:
    if not config.evaluate.adapter.weights:
        return None
    path = resolve_path(config.evaluate.adapter.weights, config.work)
    if not path.exists():
        raise ConfigError(f"evaluate.adapter.weights names {path}, which does not exist")
    return path


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
    embed: Embed, rows: Sequence[Mapping[str, Any]], images: PreparedImages, fit: Fit | None
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
