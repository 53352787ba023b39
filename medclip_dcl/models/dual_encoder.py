"""Both encoders, their maps into the shared space, and the scale gamma; low-rank adapters.

Adapters: W x + 2 B A x, where A and B learn and W stays. B starts as zeros, so that training starts
at the encoder's own answers. A published model holds W + 2 B A under the key of W, and needs no
peft. Source: Hu et al. 2022, Section 4.1; the factor alpha / r of 2 is the usual choice.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedConfig

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.models.image_encoder import ImageEncoder
from medclip_dcl.models.settings import ModelConfig, SimilarityConfig
from medclip_dcl.models.similarity import image_sentence_scores
from medclip_dcl.models.text_encoder import TextEncoder, initialise_linear

_GAMMA_SQUARED_RANGE = (1.0, 100.0)
_ADAPTER_SCALE = 2
_BASE, _DOWN, _UP = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"


class _Shortcut(nn.Module):
    """CXR-CLIP's `mlp`: a linear map, and what two layers add to it, normalised."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.projection, self.fc = nn.Linear(width, dim), nn.Linear(dim, dim)
        self.layer_norm = nn.LayerNorm(dim)

    def forward(self, states: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows dim"]:
        projected = self.projection(states)
        mapped: Tensor = self.layer_norm(self.fc(functional.gelu(projected)) + projected)
        return mapped


class DualEncoder(nn.Module):
    """The model that is trained: images and sentences on one unit sphere.

    `gamma` is the root of the score's scale: s = gamma**2 * f.
    """

    def __init__(self, settings: ModelConfig, text_config: PreTrainedConfig) -> None:
        super().__init__()
        self.similarity: SimilarityConfig = settings.similarity
        self.image = ImageEncoder(settings.image)
        dim = settings.similarity.dim
        self.region_projection: nn.Module = nn.Linear(self.image.width, dim)
        self.text = TextEncoder(text_config, dim, settings.text)
        if settings.similarity.kind == "biovil":
            self.region_projection = nn.Sequential(
                nn.Linear(self.image.width, dim), nn.ReLU(), nn.Linear(dim, dim)
            )
            norm = nn.LayerNorm(dim, eps=text_config.layer_norm_eps)
            layers = nn.Linear(text_config.hidden_size, dim), nn.GELU(), norm, nn.Linear(dim, dim)
            self.text.projection = nn.Sequential(*layers)
        elif settings.similarity.kind == "cxr_clip":
            self.region_projection = _Shortcut(self.image.width, dim)
            self.text.projection = _Shortcut(text_config.hidden_size, dim)
        self.gamma = nn.Parameter(torch.tensor(math.sqrt(settings.similarity.gamma_squared)))

    def forward(
        self,
        images: Float[Tensor, "images channels height width"],
        input_ids: Int[Tensor, "texts tokens"],
        attention_mask: Int[Tensor, "texts tokens"],
    ) -> tuple[Float[Tensor, "images rows columns dim"], Float[Tensor, "texts dim"]]:
        """Encode images and sentences in one call, as a distributed wrapper needs it."""
        return self.encode_images(images), self.encode_sentences(input_ids, attention_mask)

    def encode_images(
        self, pixels: Float[Tensor, "images 1 height width"]
    ) -> Float[Tensor, "images rows columns dim"]:
        """Map every region of normalised images (`to_input`) onto the unit sphere.

        The vectors are float32 at least, whatever autocast does elsewhere. BioViL's keep their
        lengths, which weigh them in their mean.
        """
        vectors = self.region_projection(self.image(pixels).permute(0, 2, 3, 1))
        return vectors.float() if self.similarity.kind == "biovil" else _unit(vectors)

    @property
    def has_regions(self) -> bool:
        """Whether parts of an image have vectors in the space of the sentences."""
        has_patches = self.image.has_patches and self.similarity.kind != "cxr_clip"
        return not self.image.is_pooled or has_patches

    def encode_patches(
        self, pixels: Float[Tensor, "images 1 height width"]
    ) -> Float[Tensor, "images rows columns dim"]:
        """Map the patches of a model that scores an image by its one own vector; unit vectors."""
        return _unit(self.region_projection(self.image.patches(pixels).permute(0, 2, 3, 1)))

    def encode_sentences(
        self, input_ids: Int[Tensor, "texts tokens"], attention_mask: Int[Tensor, "texts tokens"]
    ) -> Float[Tensor, "texts dim"]:
        """Map sentences, [CLS] first and 0 in the mask for padding, onto the unit sphere.

        The vectors are float32 at least, whatever autocast does elsewhere.
        """
        return _unit(self.text(input_ids, attention_mask))

    def score(
        self,
        regions: Float[Tensor, "images rows columns dim"],
        sentences: Float[Tensor, "texts dim"],
    ) -> Float[Tensor, "texts images"]:
        """Score unit vectors: f in [-1, 1]; the logit of the losses is gamma**2 * f."""
        return image_sentence_scores(regions.flatten(1, 2), sentences, self.similarity)

    @torch.no_grad()
    def clamp_gamma(self) -> None:
        """Keep gamma**2 within its range; call it after each optimiser step."""
        low, high = _GAMMA_SQUARED_RANGE
        self.gamma.clamp_(math.sqrt(low), math.sqrt(high))

    def initialise(self, generator: torch.Generator) -> None:
        """Draw fresh weights from a CPU generator alone; gamma stays."""
        self.image.initialise(generator)
        for layer in self.region_projection.modules():
            if isinstance(layer, nn.Linear):
                initialise_linear(layer, generator)
        self.text.initialise(generator)


def build_dual_encoder(
    settings: ModelConfig, text_config: PreTrainedConfig, seed: int
) -> DualEncoder:
    """Build the model with random weights, in training mode, on the CPU.

    The same seed gives the same weights; the global generator is left alone.
    """
    with torch.random.fork_rng(devices=[]):  # layers draw once while they are built
        model = DualEncoder(settings, text_config)
    model.initialise(torch.Generator().manual_seed(seed))
    return model


def add_adapters(
    encoder: DualEncoder, ranks: Mapping[Literal["image", "text"], int], seed: int
) -> int:
    """Put adapters into the linear layers of encoders that have their weights already.

    Args:
        encoder: the model, changed in place.
        ranks: `image` or `text`, or both -> rank.
        seed: that of A; the global generator is left alone.

    Returns:
        Linear layers that have one.

    Raises:
        ConfigError: peft is missing, or an encoder has no such layer.
    """
    if find_spec("peft") is None:
        raise ConfigError("model.lora needs peft; run pip install '.[lora]' in the checkout")
    peft, count = import_module("peft"), 0
    for name, rank in sorted(ranks.items()):
        backbone = getattr(encoder, name).backbone
        layers = [
            key
            for key, module in backbone.named_modules()
            # Subclasses are used by their weight alone, as in torch's attention.
            if type(module) is nn.Linear
        ]
        if not layers:
            raise ConfigError(
                f"the {name} encoder has no linear layer; name the other one in model.lora"
            )
        config = peft.LoraConfig(r=rank, lora_alpha=_ADAPTER_SCALE * rank, target_modules=layers)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            peft.inject_adapter_in_model(config, backbone)
        count += len(layers)
    return count


def merged(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Merge adapters into the weights that they stand next to; others stay."""
    plain = {}
    for key, value in weights.items():
        if ".lora_" in key:
            continue
        name, base, part = key.partition(_BASE)
        if base and part == "weight":
            down, up = weights[f"{name}{_DOWN}"], weights[f"{name}{_UP}"]
            value = value + _ADAPTER_SCALE * (up @ down)
        plain[f"{name}.{part}" if base else key] = value
    return plain


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode without gradients, then every part of it back into its own."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def trim_padding(
    input_ids: Int[Tensor, "texts tokens"], attention_mask: Int[Tensor, "texts tokens"]
) -> tuple[Int[Tensor, "texts longest"], Int[Tensor, "texts longest"]]:
    """Cut sentences to the longest of them."""
    longest = int(attention_mask.sum(1).max())
    return input_ids[:, :longest], attention_mask[:, :longest]


def _unit(vectors: Tensor) -> Tensor:
    if vectors.dtype != torch.float64:
        vectors = vectors.float()
    return functional.normalize(vectors, dim=-1)
