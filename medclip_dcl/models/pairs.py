"""A pair of encoders that others trained together, as its file holds it.

transformers   CLIP and SigLIP: two encoders, and maps or a head into the common space
open_clip      BiomedCLIP: timm's ViT, a BERT, a map of each; sizes are those of the tensors,
               since open_clip's own file names models of timm and of a hub instead
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, PreTrainedConfig

from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.models.pretrained import read_tensors


@dataclass(frozen=True)
class PairWeights:
    """Weights and sizes of both encoders, their maps and the scale."""

    vision: PreTrainedConfig | Mapping[str, Any]
    """Sizes of the image encoder: a configuration of transformers, or its fields."""
    text_config: PreTrainedConfig
    image: Mapping[str, Tensor]
    """Weights of the image encoder, by the keys of transformers' class."""
    text: Mapping[str, Tensor]
    """Weights of the text encoder, by the keys of transformers' class."""
    maps: Mapping[str, Tensor]
    """Weights of `region_projection` and `projection`; biases that are not there are 0."""
    scale: float
    """Factor of a cosine in the loss, at the end of training."""
    text_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the text encoder that only the file knows."""


def transformers_pair(model: Any) -> PairWeights:
    """Take a `CLIPModel` or `SiglipModel` apart; CheckpointError where it has no common space."""
    vision, text = model.vision_model, model.text_model
    width = vision.config.hidden_size
    if model.config.model_type == "clip":
        maps = {
            "region_projection.weight": model.visual_projection.weight,
            "projection.weight": model.text_projection.weight,
        }
    elif vision.config.vision_use_head and len(text.head.bias) == width:
        maps = {
            "region_projection.weight": torch.eye(width),
            "projection.weight": text.head.weight,
            "projection.bias": text.head.bias,
        }
    else:
        raise CheckpointError(
            "this SigLIP has no head that brings images into the space of its texts; set "
            "image.pretrained and text.pretrained to train maps of their own"
        )
    return PairWeights(
        vision.config,
        text.config,
        image=vision.state_dict(),
        text={key: item for key, item in text.state_dict().items() if not key.startswith("head.")},
        maps={key: value.detach() for key, value in maps.items()},
        scale=float(model.logit_scale.detach().exp()),
    )


_TIMM = (
    (re.compile(r"^blocks\.(\d+)\.attn\.proj\."), r"layers.\1.attention.o_proj."),
    (re.compile(r"^blocks\.(\d+)\.norm1\."), r"layers.\1.layernorm_before."),
    (re.compile(r"^blocks\.(\d+)\.norm2\."), r"layers.\1.layernorm_after."),
    (re.compile(r"^blocks\.(\d+)\.mlp\."), r"layers.\1.mlp."),
    (re.compile(r"^patch_embed\.proj\."), "embeddings.patch_embeddings.projection."),
    (re.compile(r"^cls_token$"), "embeddings.cls_token"),
    (re.compile(r"^pos_embed$"), "embeddings.position_embeddings"),
    (re.compile(r"^norm\."), "layernorm."),
)
_QKV = re.compile(r"^blocks\.(\d+)\.attn\.qkv\.(\w+)$")
_OPEN_CLIP_MAPS = {
    "visual.head.proj.weight": "region_projection.weight",
    "text.proj.weight": "projection.weight",
    "text.proj.0.weight": "projection.0.weight",
    "text.proj.2.weight": "projection.2.weight",
}
_POOLERS = {"cls_last_hidden_state_pooler": "cls", "mean_pooler": "mean"}
_HEAD_WIDTH = 64  # of one attention head, in every ViT and BERT that open_clip pairs


def open_clip_pair(file: Path, facts: Mapping[str, Any]) -> PairWeights:
    """Read open_clip's file of a ViT and a BERT; `facts` are those of open_clip_config.json.

    Raises:
        CheckpointError: it is damaged, or holds other encoders or keys.
    """
    image: dict[str, Tensor] = {}
    text: dict[str, Tensor] = {}
    maps: dict[str, Tensor] = {}
    rest: dict[str, Tensor] = {}
    for key, value in read_tensors(file).items():
        if key.startswith("visual.trunk."):
            image |= _from_timm(key.removeprefix("visual.trunk."), value)
        elif key.startswith("text.transformer."):
            text[key.removeprefix("text.transformer.")] = value
        elif key in _OPEN_CLIP_MAPS:
            maps[_OPEN_CLIP_MAPS[key]] = value
        else:
            rest[key] = value
    said = facts.get("model_cfg", {}).get("text_cfg", {})
    pooler = said.get("pooler_type", "cls_last_hidden_state_pooler")
    hidden = maps.get("projection.0.weight", ())
    settings = {"pooling": _POOLERS.get(pooler), "projection_width": len(hidden)}
    if limit := said.get("context_length"):
        settings["max_tokens"] = limit
    try:
        scale = float(rest.pop("logit_scale").exp())
        pair = PairWeights(
            _vit_sizes(image), _bert_sizes(text), image, text, maps, scale, text_settings=settings
        )
        known = not rest and "region_projection.weight" in maps and pooler in _POOLERS
    except (KeyError, IndexError, ValueError):
        known = False
    if not known:
        raise CheckpointError(
            f"{file.name} is not timm's ViT with a BERT, as BiomedCLIP is (unknown keys: "
            f"{sorted(rest)[:3]}, pooler {pooler}); convert it to transformers' CLIP"
        )
    return pair


def _vit_sizes(state: Mapping[str, Tensor]) -> dict[str, Any]:
    patch = state["embeddings.patch_embeddings.projection.weight"]
    side = math.isqrt(state["embeddings.position_embeddings"].shape[1] - 1)
    width, channels, patch_px, _ = patch.shape
    return {
        "model_type": "vit",
        "hidden_size": width,
        "num_hidden_layers": _layers(state, "layers."),
        "num_attention_heads": max(1, width // _HEAD_WIDTH),
        "intermediate_size": len(state["layers.0.mlp.fc1.bias"]),
        "image_size": side * patch_px,
        "patch_size": patch_px,
        "num_channels": channels,
        "layer_norm_eps": 1e-6,
    }


def _bert_sizes(state: Mapping[str, Tensor]) -> BertConfig:
    words = state["embeddings.word_embeddings.weight"]
    return BertConfig(
        vocab_size=len(words),
        hidden_size=words.shape[1],
        num_hidden_layers=_layers(state, "encoder.layer."),
        num_attention_heads=max(1, words.shape[1] // _HEAD_WIDTH),
        intermediate_size=len(state["encoder.layer.0.intermediate.dense.bias"]),
        max_position_embeddings=len(state["embeddings.position_embeddings.weight"]),
    )


def _from_timm(key: str, value: Tensor) -> dict[str, Tensor]:
    if match := _QKV.match(key):
        layer, part = match.groups()
        names = ("q_proj", "k_proj", "v_proj")
        return {
            f"layers.{layer}.attention.{name}.{part}": piece
            for name, piece in zip(names, value.chunk(3), strict=True)
        }
    for pattern, name in _TIMM:
        if pattern.match(key):
            return {pattern.sub(name, key): value}
    return {key: value}


def _layers(state: Mapping[str, Tensor], prefix: str) -> int:
    return 1 + max(int(key[len(prefix) :].split(".")[0]) for key in state if key.startswith(prefix))
