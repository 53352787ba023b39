"""Sentence -> vector: BERT without its pooler, one state, a linear map."""

from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from medclip_dcl.models.pretrained import LoadReport, fill, read_tensors

_PREFIX = "bert."
# Language-model, projection and pooling heads, and a buffer that old checkpoints carry.
_HEADS = ("cls.", "cls_projection_head.", "pooler.", "embeddings.position_ids")


class TextEncoder(nn.Module):
    """BERT and the map from the state of its first token, [CLS], into the shared space."""

    def __init__(self, text_config: BertConfig, dim: int) -> None:
        super().__init__()
        self.backbone = BertModel(text_config, add_pooling_layer=False)
        self.projection = nn.Linear(text_config.hidden_size, dim)

    def forward(
        self,
        input_ids: Int[Tensor, "texts tokens"],
        attention_mask: Int[Tensor, "texts tokens"],
    ) -> Float[Tensor, "texts dim"]:
        """Map each sentence into the shared space.

        Args:
            input_ids: word pieces, [CLS] first.
            attention_mask: 1 for real tokens, 0 for padding.

        Returns:
            One vector a sentence, not normalised.
        """
        states = self.backbone(input_ids=input_ids, attention_mask=attention_mask)[0]
        projected: Tensor = self.projection(states[:, 0])
        return projected

    def checkpoint_activations(self) -> None:
        """Compute the activations of each layer twice instead of keeping them."""
        self.backbone.activation_checkpointing_enable({"use_reentrant": False})

    def compile_layers(self, backend: str) -> None:
        """Compile BERT in place; keys of the weights stay.

        Sentences differ in length; shapes that are known to vary from the first batch on are
        compiled once.

        Args:
            backend: one of torch's compilers.
        """
        self.backbone.compile(dynamic=True, backend=backend)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw fresh weights.

        Args:
            generator: CPU generator; the only source of randomness.

        Source: Devlin et al. 2019: normal with the config's `initializer_range`, zero
            biases; the padding embedding is zero; the projection as `nn.Linear` has it.
        """
        spread = self.backbone.config.initializer_range
        for module in self.backbone.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=spread, generator=generator)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding) and module.padding_idx is not None:
                nn.init.zeros_(module.weight[module.padding_idx].detach())
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()
        initialise_linear(self.projection, generator)


def initialise_linear(layer: nn.Linear, generator: torch.Generator) -> None:
    """Draw a linear map and its bias uniformly within one over the root of its inputs.

    Args:
        layer: a linear map with a bias.
        generator: CPU generator; the only source of randomness.

    Source: `torch.nn.Linear`'s own start, from a generator that is handed in.
    """
    bound = layer.in_features**-0.5
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


def fill_text_encoder(encoder: TextEncoder, folder: Path) -> LoadReport:
    """Fill BERT from a language model's checkpoint; the projection stays as it is.

    Args:
        encoder: encoder that receives the weights.
        folder: directory with `model.safetensors` or `pytorch_model.bin`, keys with or
            without `bert.` (our language model, CXR-BERT, plain BERT).

    Returns:
        What was matched; `unexpected` holds the heads that are not used.

    Raises:
        CheckpointError: the file cannot be read, lacks a weight, has one of another
            shape, or holds keys that are neither BERT's nor a known head's.
    """
    state = {_modern(key): value for key, value in read_tensors(folder).items()}
    return fill(encoder.backbone, state, heads=_HEADS, layout="bert")


def _modern(key: str) -> str:
    """Drop the prefix, and translate the layer norm names of the first BERT releases."""
    key = key.removeprefix(_PREFIX)
    key = key.replace("LayerNorm.gamma", "LayerNorm.weight")
    return key.replace("LayerNorm.beta", "LayerNorm.bias")
