"""Sentence -> vector: BERT without its pooler, one state, a linear map."""

from collections import OrderedDict
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from medclip_dcl.models.pretrained import LoadReport, fill, modern_key, read_tensors

# Language-model, projection and pooling heads, and a buffer that old checkpoints carry.
_TRAINED = "cls_projection_head."
_HEADS = ("cls.", _TRAINED, "pooler.", "embeddings.position_ids")


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
        """Map each sentence into the shared space; the vectors are not normalised."""
        states = self.backbone(input_ids=input_ids, attention_mask=attention_mask)[0]
        projected: Tensor = self.projection(states[:, 0])
        return projected

    def checkpoint_activations(self) -> None:
        """Compute the activations of each layer twice instead of keeping them."""
        self.backbone.activation_checkpointing_enable({"use_reentrant": False})

    def compile_layers(self, backend: str) -> None:
        """Compile BERT in place by one of torch's compilers; keys of the weights stay."""
        # Sentences differ in length; shapes known to vary from the start are compiled once.
        self.backbone.compile(dynamic=True, backend=backend)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw fresh weights from a CPU generator alone.

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

    Source: `torch.nn.Linear`'s own start, from a generator that is handed in.
    """
    bound = layer.in_features**-0.5
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


def load_text_weights(encoder: TextEncoder, folder: Path) -> LoadReport:
    """Fill BERT from a language model's folder; the projection stays as it is.

    Keys may have `bert.` before them or not (our language model, CXR-BERT, plain BERT).
    CheckpointError as `read_tensors` and `fill`.
    """
    state = {
        modern_key(key.removeprefix("bert.")): value for key, value in read_tensors(folder).items()
    }
    return fill(encoder.backbone, state, heads=_HEADS, layout="bert")


def load_trained_projection(folder: Path, text_config: BertConfig) -> TextEncoder | None:
    """Build a checkpoint's own text encoder, its trained projection included; None: it has none.

    The maps are those of CXR-BERT-specialized and BioViL-T, trained against images: linear, GELU,
    layer norm, linear. CheckpointError as `read_tensors` and `fill`.
    """
    state = read_tensors(folder)
    head = {
        modern_key(key.removeprefix(_TRAINED)): value
        for key, value in state.items()
        if key.startswith(_TRAINED)
    }
    inner, outer = head.get("dense_to_hidden.weight"), head.get("dense_to_output.weight")
    if inner is None or outer is None:
        return None
    encoder = TextEncoder(text_config, len(outer))
    load_text_weights(encoder, folder)
    layers: list[tuple[str, nn.Module]] = [
        ("dense_to_hidden", nn.Linear(inner.shape[1], len(inner))),
        ("activation", nn.GELU()),
        ("LayerNorm", nn.LayerNorm(len(inner), eps=text_config.layer_norm_eps)),
        ("dense_to_output", nn.Linear(len(inner), len(outer))),
    ]
    projection = nn.Sequential(OrderedDict(layers))
    fill(projection, head, heads=())
    encoder.projection = projection  # type: ignore[assignment]
    return encoder.eval().requires_grad_(False)
