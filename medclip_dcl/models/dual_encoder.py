"""Both encoders, their maps into the shared space, and the scale gamma."""

import math
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig

from medclip_dcl.models.image_encoder import ImageEncoder
from medclip_dcl.models.pretrained import LoadReport
from medclip_dcl.models.settings import ModelConfig, SimilarityConfig
from medclip_dcl.models.similarity import image_sentence_scores
from medclip_dcl.models.text_encoder import TextEncoder, fill_text_encoder, initialise_linear

GAMMA_SQUARED_RANGE = (1.0, 100.0)
"""Least and largest scale gamma**2 of the score."""


class DualEncoder(nn.Module):
    """The model that is trained: images and sentences on one unit sphere.

    Attributes:
        image: image -> feature map.
        region_projection: channels of a cell -> shared space.
        text: sentence -> shared space.
        gamma: root of the score's scale; s = gamma**2 * f.
        similarity: how regions and sentence become one score.
    """

    def __init__(self, settings: ModelConfig, text_config: BertConfig) -> None:
        super().__init__()
        self.similarity: SimilarityConfig = settings.similarity
        self.image = ImageEncoder(settings.image)
        self.region_projection = nn.Linear(self.image.width, settings.similarity.dim)
        self.text = TextEncoder(text_config, settings.similarity.dim)
        self.gamma = nn.Parameter(torch.tensor(math.sqrt(settings.similarity.gamma_squared)))

    def forward(
        self,
        pixels: Float[Tensor, "images 1 height width"],
        input_ids: Int[Tensor, "texts tokens"],
        attention_mask: Int[Tensor, "texts tokens"],
    ) -> tuple[Float[Tensor, "images rows columns dim"], Float[Tensor, "texts dim"]]:
        """Encode images and sentences in one call, as a distributed wrapper needs it.

        Args:
            pixels: normalised images.
            input_ids: word pieces, [CLS] first.
            attention_mask: 1 for real tokens, 0 for padding.

        Returns:
            `encode_images` and `encode_sentences` of the arguments.
        """
        return self.encode_images(pixels), self.encode_sentences(input_ids, attention_mask)

    def encode_images(
        self, pixels: Float[Tensor, "images 1 height width"]
    ) -> Float[Tensor, "images rows columns dim"]:
        """Map every region of each image onto the unit sphere.

        Args:
            pixels: normalised images, as `preprocessing.to_input` makes them.

        Returns:
            Unit vectors, float32 at least, whatever autocast does elsewhere.
        """
        cells = self.image(pixels).permute(0, 2, 3, 1)
        return _unit(self.region_projection(cells))

    def encode_sentences(
        self,
        input_ids: Int[Tensor, "texts tokens"],
        attention_mask: Int[Tensor, "texts tokens"],
    ) -> Float[Tensor, "texts dim"]:
        """Map each sentence onto the unit sphere.

        Args:
            input_ids: word pieces, [CLS] first.
            attention_mask: 1 for real tokens, 0 for padding.

        Returns:
            Unit vectors, float32 at least, whatever autocast does elsewhere.
        """
        return _unit(self.text(input_ids, attention_mask))

    def score(
        self,
        regions: Float[Tensor, "images rows columns dim"],
        sentences: Float[Tensor, "texts dim"],
    ) -> Float[Tensor, "texts images"]:
        """Score every image against every sentence.

        Args:
            regions: unit vectors of each image's regions.
            sentences: unit vectors.

        Returns:
            f in [-1, 1]; the logit of the losses is gamma**2 * f.
        """
        return image_sentence_scores(regions.flatten(1, 2), sentences, self.similarity)

    @torch.no_grad()
    def clamp_gamma(self) -> None:
        """Keep gamma**2 within its range; call it after each optimiser step."""
        low, high = GAMMA_SQUARED_RANGE
        self.gamma.clamp_(math.sqrt(low), math.sqrt(high))

    def initialise(self, generator: torch.Generator) -> None:
        """Draw fresh weights; gamma stays.

        Args:
            generator: CPU generator; the only source of randomness.
        """
        self.image.initialise(generator)
        initialise_linear(self.region_projection, generator)
        self.text.initialise(generator)


def build_dual_encoder(settings: ModelConfig, text_config: BertConfig, seed: int) -> DualEncoder:
    """Build the model with random weights.

    Args:
        settings: sizes and kinds.
        text_config: BERT's own configuration, that of the fitted language model.
        seed: the same seed gives the same weights; the global generator is left alone.

    Returns:
        The model, in training mode, on the CPU.
    """
    with torch.random.fork_rng(devices=[]):  # layers draw once while they are built
        model = DualEncoder(settings, text_config)
    model.initialise(torch.Generator().manual_seed(seed))
    return model


def load_text_weights(encoder: DualEncoder, folder: Path) -> LoadReport:
    """Start the text encoder from a fitted language model.

    Args:
        encoder: model whose BERT is filled; its projection stays random.
        folder: directory with `model.safetensors` or `pytorch_model.bin`, keys with or
            without `bert.` (our language model, CXR-BERT, plain BERT).

    Returns:
        What was matched; `unexpected` holds the heads that are not used.

    Raises:
        CheckpointError: the file cannot be read, lacks a weight, has one of another
            shape, or holds keys that are neither BERT's nor a known head's.
    """
    return fill_text_encoder(encoder.text, folder)


def _unit(vectors: Tensor) -> Tensor:
    if vectors.dtype != torch.float64:
        vectors = vectors.float()
    return functional.normalize(vectors, dim=-1)
