"""Who is examined: our own model, or anybody's behind two functions.

`Encoders` is all that an evaluation asks of a model. A published model has both functions;
so has a small class around any other, such as one of open_clip or BioViL:

    class Theirs:
        def embed_images(self, images):       # (images, size, size) bytes, 0 black
            ...                              # -> (images, rows, columns, dim)
        def embed_sentences(self, texts):    # strings
            ...                              # -> (texts, dim)

    def build(weights: str) -> Theirs:       # evaluate.adapter.model: my_module:build
        ...

A model without regions gives one of each image: (images, 1, 1, dim). Vectors need not have
unit length. The two sides must lie in one space.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

from medclip_dcl.errors import CheckpointError, QueryError
from medclip_dcl.inference.predictor import Predictor
from medclip_dcl.inference.zero_shot import Finding, margins, prompt_texts
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.models.similarity import image_sentence_scores


@runtime_checkable
class Encoders(Protocol):
    """What a model must be able to do to be examined."""

    def embed_images(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images rows columns dim"]:
        """Give the region vectors of prepared images, of whatever length."""

    def embed_sentences(self, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
        """Give the vectors of sentences, of whatever length."""


@dataclass(frozen=True)
class EvaluatedModel:
    """A model under examination.

    Attributes:
        digest: names the model.
        encoders: its two functions.
        similarity: how regions and sentence become one score.
        gamma_squared: scale of the score in softmaxes.
    """

    digest: str
    encoders: Encoders
    similarity: SimilarityConfig
    gamma_squared: float

    @torch.inference_mode()
    def embed_images(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images rows columns dim"]:
        """Encode prepared images, all in one pass.

        Args:
            images: square 8-bit images.

        Returns:
            Unit region vectors.

        Raises:
            CheckpointError: the model gives something else than region vectors.
        """
        return _unit(self.encoders.embed_images(images), len(images), 4, "embed_images")

    @torch.inference_mode()
    def embed_sentences(self, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
        """Encode sentences.

        Args:
            texts: sentences.

        Returns:
            Unit vectors in the order of the texts.

        Raises:
            CheckpointError: the model gives something else than sentence vectors.
            QueryError: there is no text, or one is blank.
        """
        if not texts or not all(text.strip() for text in texts):
            raise QueryError("a sentence is empty; give text with at least one word")
        return _unit(self.encoders.embed_sentences(texts), len(texts), 2, "embed_sentences")

    @torch.inference_mode()
    def score(
        self,
        regions: Float[Tensor, "images rows columns dim"],
        sentences: Float[Tensor, "texts dim"],
    ) -> Float[Tensor, "texts images"]:
        """Score every image against every sentence.

        Args:
            regions: unit vectors.
            sentences: unit vectors.

        Returns:
            f in [-1, 1].
        """
        return image_sentence_scores(regions.flatten(1, 2), sentences, self.similarity)

    def margins(
        self, regions: Float[Tensor, "images rows columns dim"], findings: Sequence[Finding]
    ) -> Float[Tensor, "findings images"]:
        """Compare the two prompts of each finding on each image.

        Args:
            regions: from `embed_images`.
            findings: the findings.

        Returns:
            f(positive) - f(negative), in [-2, 2].
        """
        prompts = self.embed_sentences(prompt_texts(findings))
        return margins(self.score(regions, prompts), findings)


def evaluated_model(predictor: Predictor) -> EvaluatedModel:
    """Put a published model under examination.

    Args:
        predictor: the model.

    Returns:
        The model with its own similarity and scale.
    """
    gamma_squared = float(predictor.model.gamma.detach() ** 2)
    return EvaluatedModel(predictor.digest, predictor, predictor.model.similarity, gamma_squared)


def _unit(vectors: Tensor, count: int, axes: int, function: str) -> Tensor:
    if not isinstance(vectors, Tensor) or vectors.ndim != axes or len(vectors) != count:
        given = tuple(vectors.shape) if isinstance(vectors, Tensor) else type(vectors).__name__
        asked = "(images, rows, columns, dim)" if axes == 4 else "(texts, dim)"
        raise CheckpointError(f"{function} gave {given} for {count}; it must give {asked} tensors")
    vectors = vectors.float()
    if not bool(vectors.isfinite().all()):
        raise CheckpointError(f"{function} gave values that are not finite; repair the model")
    return functional.normalize(vectors, dim=-1)
