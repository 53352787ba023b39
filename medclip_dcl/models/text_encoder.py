"""Sentence -> vector: a text encoder of transformers without its pooler, one state, a map.

cls     state of the first token
mean    mean of the states of all word pieces
eos     state of the last word piece: sentences are padded on the right
last    last state of a window that padding fills, and that sees it, as SigLIP's does
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoModel,
    BertConfig,
    BertModel,
    BertTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from medclip_dcl.core.errors import CheckpointError, ConfigError, QueryError
from medclip_dcl.models.architectures import REFUSALS, TEXT_TYPES, check_sizes, check_tokenizer
from medclip_dcl.models.public.weights import CONFIG, LoadReport, fill, read_json, read_tensors
from medclip_dcl.models.settings import TextEncoderConfig

# Language-model, projection and pooling heads, and a buffer that old checkpoints carry.
_HEADS = ("cls.", "cls_projection_head.", "pooler.", "embeddings.position_ids")


TOKENIZER, VOCABULARY = "tokenizer.json", "vocab.txt"
"""Files of a text encoder's folder next to `CONFIG`; either of them."""

BERT_FIELDS = (  # fields of a checkpoint's config.json that are read; all others are ignored
    "attention_probs_dropout_prob",
    "hidden_act",
    "hidden_dropout_prob",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "layer_norm_eps",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "pad_token_id",
    "type_vocab_size",
    "vocab_size",
)


class TextEncoder(nn.Module):
    """BERT or another encoder, and the map from one of its states into the shared space.

    By default the state is that of the first token, [CLS], and the map linear.
    """

    def __init__(
        self,
        text_config: PreTrainedConfig,
        dim: int,
        settings: TextEncoderConfig = TextEncoderConfig(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__()
        self.pooling = "cls" if settings.pooling == "auto" else settings.pooling
        self.backbone: Any = _build_backbone(text_config)
        width, hidden = text_config.hidden_size, settings.projection_width
        self.projection: Any = nn.Linear(hidden or width, dim)
        if hidden:
            self.projection = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), self.projection)

    def forward(
        self, input_ids: Int[Tensor, "texts tokens"], attention_mask: Int[Tensor, "texts tokens"]
    ) -> Float[Tensor, "texts dim"]:
        """Map each sentence into the shared space; the vectors are not normalised."""
        projected: Tensor = self.projection(self.pooled(input_ids, attention_mask))
        return projected

    def pooled(
        self, input_ids: Int[Tensor, "texts tokens"], attention_mask: Int[Tensor, "texts tokens"]
    ) -> Float[Tensor, "texts width"]:
        """Compute the state of each sentence that is mapped."""
        if self.pooling == "last":
            config = self.backbone.config
            rest = config.max_position_embeddings - input_ids.shape[1]
            ids = input_ids.masked_fill(attention_mask == 0, config.pad_token_id)
            ids = functional.pad(ids, (0, rest), value=config.pad_token_id)
            last: Tensor = self.backbone(input_ids=ids)[0][:, -1]
            return last
        states: Tensor = self.backbone(input_ids=input_ids, attention_mask=attention_mask)[0]
        if self.pooling == "mean":
            weights = attention_mask.unsqueeze(-1).to(states.dtype)
            return (states * weights).sum(dim=1) / weights.sum(dim=1)
        if self.pooling == "eos":
            rows = torch.arange(
                states.shape[0], device=states.device
            )  # `len` would be fixed in a graph
            return states[rows, attention_mask.sum(dim=1) - 1]
        return states[:, 0]

    def initialise(self, generator: torch.Generator) -> None:
        """Draw fresh weights from a CPU generator alone.

        Source: Devlin et al. 2019: normal with the config's `initializer_range`, zero
            biases; the padding embedding is zero; the projection as `nn.Linear` has it.
            Other encoders as transformers starts them.
        """
        if isinstance(self.backbone, BertModel):
            _initialise_bert(self.backbone, generator)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
                self.backbone = _build_backbone(self.backbone.config)
        for layer in self.projection.modules():
            if isinstance(layer, nn.Linear):
                initialise_linear(layer, generator)


def _initialise_bert(bert: BertModel, generator: torch.Generator) -> None:
    for module in bert.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            spread = bert.config.initializer_range
            nn.init.normal_(module.weight, std=spread, generator=generator)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding) and module.padding_idx is not None:
            nn.init.zeros_(module.weight[module.padding_idx].detach())
        elif isinstance(module, nn.LayerNorm):
            module.reset_parameters()


def _build_backbone(text_config: PreTrainedConfig) -> nn.Module:
    # Random weights, from torch's own generator.
    if isinstance(text_config, BertConfig):
        return BertModel(text_config, add_pooling_layer=False)
    if text_config.model_type not in TEXT_TYPES:
        raise ConfigError(
            f"model.text.pretrained: {text_config.model_type} is not a text encoder that is known "
            f"here; give one of {', '.join(TEXT_TYPES)}"
        )
    if text_config.model_type == "siglip_text_model":  # AutoModel does not list it
        backbone: Any = import_module("transformers").SiglipTextModel(text_config)
        backbone.head = nn.Identity()  # its map into SigLIP's space is `projection` here
    else:
        backbone = AutoModel.from_config(  # type: ignore[no-untyped-call]
            text_config, trust_remote_code=False
        )
    if getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None
    built: nn.Module = backbone
    return built


def initialise_linear(layer: nn.Linear, generator: torch.Generator) -> None:
    """Draw a linear map and its bias uniformly within one over the root of its inputs.

    Source: `torch.nn.Linear`'s own start, from a generator that is handed in.
    """
    bound = layer.in_features**-0.5
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


def read_bert_config(folder: Path) -> BertConfig:
    """Read a checkpoint's sizes; fields outside `BERT_FIELDS` are BERT's defaults.

    Raises:
        CheckpointError: it is missing or damaged, or not BERT's.
    """
    tree = read_json(folder / CONFIG)
    kind = tree.get("position_embedding_type", "absolute")
    fields = {name: tree[name] for name in BERT_FIELDS if name in tree}
    if kind != "absolute":
        raise CheckpointError(f"position embeddings are {kind!r}; only absolute ones are read")
    try:
        check_sizes(fields, CONFIG)
        return BertConfig(**fields)
    except (ConfigError, *REFUSALS) as error:
        raise CheckpointError(f"{CONFIG} holds a value that BERT does not accept") from error


def read_bert_tokenizer(folder: Path) -> BertTokenizer:
    """Read a checkpoint's fast WordPiece tokenizer, offline and without its code.

    Raises:
        CheckpointError: its files are missing or damaged.
    """
    if not (folder / TOKENIZER).is_file() and not (folder / VOCABULARY).is_file():
        raise CheckpointError(f"neither {TOKENIZER} nor {VOCABULARY} is there; add one")
    tokenizer: BertTokenizer = load_tokenizer(BertTokenizer, folder)
    return tokenizer


def load_tokenizer(kind: type[PreTrainedTokenizerBase], folder: Path) -> Any:
    """Load a tokenizer's files, whose steps must be known and bounded; CheckpointError."""
    if (folder / TOKENIZER).is_file():
        check_tokenizer(folder / TOKENIZER)
    try:
        return kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, *REFUSALS) as error:
        raise CheckpointError(f"the tokenizer's files of {folder} cannot be read") from error


def load_text_weights(encoder: TextEncoder, folder: Path) -> LoadReport:
    """Fill BERT from a language model's folder; the projection stays as it is.

    Keys may have `bert.` before them or not (our language model, CXR-BERT, plain BERT).
    CheckpointError as `read_tensors` and `fill`.
    """
    state = {key.removeprefix("bert."): value for key, value in read_tensors(folder).items()}
    return fill(encoder.backbone, state, heads=_HEADS, layout="bert")


def list_texts(texts: Any) -> list[str]:
    """List texts, of which a string is one.

    Raises:
        QueryError: one is not a string, as a missing value of a table is not.
    """
    try:
        listed = [texts] if isinstance(texts, str) else list(texts)
    except TypeError:
        listed = [texts]
    for index, text in enumerate(listed):
        if not isinstance(text, str) or re.search("[\ud800-\udfff]", text):
            raise QueryError(
                f"text {index} is not a string; leave missing texts out, decode bytes, mend halves "
                "of characters"
            )
    return listed
