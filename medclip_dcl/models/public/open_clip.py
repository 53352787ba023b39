"""open_clip's checkpoints, and OpenAI's keys, which its own models have.

    BiomedCLIP     open_clip_config.json; timm's ViT, a BERT, a linear map or two layers of each
    open_clip      open_clip_config.json; its ViT and text transformer, whose keys are OpenAI's
    SigLIP         open_clip_config.json; timm's ViT, which pools by attention, and that transformer
    CheXzero       one file of OpenAI's keys without a configuration, and a tokenizer next to it

Sizes are those of the tensors, since the configuration names models of timm and of a hub instead.

Source: open_clip 3.3, `model.py`, `hf_model.py`, `timm_model.py`, `transform.py`; CheXzero's
    `data_process.py` and `zero_shot.py` (Tiu et al. 2022).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import CLIPTextConfig, CLIPVisionConfig, SiglipTextConfig, SiglipVisionConfig

from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.data.limits import Fit
from medclip_dcl.models.public import checkpoint, weights

FAMILY = "open_clip"
_TEXT_HEADS = 8  # open_clip's, where its configuration names none
_SUFFIXES = {".pt", ".pth", ".bin", ".safetensors"}

_TIMM = (
    (r"blocks\.(\d+)\.attn\.proj\.", r"layers.\1.attention.o_proj."),
    (r"blocks\.(\d+)\.norm1\.", r"layers.\1.layernorm_before."),
    (r"blocks\.(\d+)\.norm2\.", r"layers.\1.layernorm_after."),
    (r"blocks\.(\d+)\.mlp\.", r"layers.\1.mlp."),
    (r"patch_embed\.proj\.", "embeddings.patch_embeddings.projection."),
    (r"cls_token$", "embeddings.cls_token"),
    (r"pos_embed$", "embeddings.position_embeddings"),
    (r"norm\.", "layernorm."),
)
_TIMM_SIGLIP = (
    (r"blocks\.(\d+)\.attn\.proj\.", r"encoder.layers.\1.self_attn.out_proj."),
    (r"blocks\.(\d+)\.norm(\d)\.", r"encoder.layers.\1.layer_norm\2."),
    (r"blocks\.(\d+)\.mlp\.", r"encoder.layers.\1.mlp."),
    (r"patch_embed\.proj\.", "embeddings.patch_embedding."),
    (r"norm\.", "post_layernorm."),
    (r"attn_pool\.latent$", "head.probe"),
    (r"attn_pool\.proj\.", "head.attention.out_proj."),
    (r"attn_pool\.norm\.", "head.layernorm."),
    (r"attn_pool\.mlp\.", "head.mlp."),
)
_TIMM_SIGLIP_QKV = (r"blocks\.(\d+)\.attn\.qkv\.(\w+)", r"encoder.layers.\1.self_attn.{}_proj.\2")
_SIXTEEN_HEADS = {1024, 1152, 1536}  # widths of timm's SigLIP; others have heads of 64 units
# Names of timm whose units are tanh's approximation, as those of a text by `act_kwargs`.
_TANH = re.compile(r"patch32_siglip|large_patch16_siglip_512|so400m_patch16_|giantopt_")
_SIGLIP_ASKS = {
    "timm_pool": ("map",),
    "timm_proj": ("none",),
    "no_causal_mask": (True,),
    "proj_bias": (True,),
    "pool_type": ("last",),
    "norm_kwargs": ({"eps": 1e-6},),
    "act_kwargs": ({"approximate": "tanh"}, None),
    "tokenizer_kwargs": ({"clean": "canonicalize"},),
}
_TIMM_QKV = (r"blocks\.(\d+)\.attn\.qkv\.(\w+)", r"layers.\1.attention.{}_proj.\2")
_BLOCKS = r"transformer\.resblocks\.(\d+)\."
_OPENAI = (
    (_BLOCKS + r"ln_(\d)\.", r"encoder.layers.\1.layer_norm\2."),
    (_BLOCKS + r"attn\.out_proj\.", r"encoder.layers.\1.self_attn.out_proj."),
    (_BLOCKS + r"mlp\.c_fc\.", r"encoder.layers.\1.mlp.fc1."),
    (_BLOCKS + r"mlp\.c_proj\.", r"encoder.layers.\1.mlp.fc2."),
    (r"conv1\.", "embeddings.patch_embedding."),
    (r"class_embedding$", "embeddings.class_embedding"),
    (r"positional_embedding$", "embeddings.position_embedding.weight"),
    (r"token_embedding\.", "embeddings.token_embedding."),
    (r"ln_pre\.", "pre_layrnorm."),
    (r"ln_post\.", "post_layernorm."),
    (r"ln_final\.", "final_layer_norm."),
)
_OPENAI_QKV = (_BLOCKS + r"attn\.in_proj_(\w+)", r"encoder.layers.\1.self_attn.{}_proj.\2")
_COUNTS = {"input_resolution", "context_length", "vocab_size", "attn_mask"}  # not weights
_MAPS = {
    "visual.head.proj.weight": "region_projection.weight",
    "text.proj.weight": "projection.weight",
    "text.proj.0.weight": "projection.0.weight",
    "text.proj.2.weight": "projection.2.weight",
}
_POOLERS = {"cls_last_hidden_state_pooler": "cls", "mean_pooler": "mean"}
# Fields of the two towers that name sizes, or files that are not read; others change the network.
_PLAIN = {
    *("image_size", "layers", "width", "patch_size", "head_width", "context_length", "vocab_size"),
    *("heads", "timm_model_name", "timm_model_pretrained", "timm_proj", "hf_model_name"),
    *("hf_tokenizer_name", "hf_model_pretrained", "hf_proj_type", "hf_pooler_type", "proj_type"),
    *("pooler_type", "timm_drop", "timm_drop_path", "patch_dropout", "tokenizer_kwargs"),
    *("mlp_ratio", "tokenizer_mode", "pad_id", "eos_id"),
}


def read(folder: Path) -> checkpoint.Checkpoint | None:
    """Read a whole model; None: the folder has another layout.

    Raises:
        CheckpointError: it is damaged, or holds other encoders, options or keys.
    """
    if (folder / weights.OPEN_CLIP).is_file():
        if (folder / weights.CONFIG).is_file() and (folder / "model.safetensors").is_file():
            return None  # transformers' form of the same model is next to it
        facts = weights.read_json(folder / weights.OPEN_CLIP).get("model_cfg", {})
        file = weights.weights_file(folder)
    elif single := _single_file(folder):
        facts, file = {"quick_gelu": True}, single
    else:
        return None
    vision, text = facts.get("vision_cfg", {}), facts.get("text_cfg", {})
    is_siglip, options = vision.get("timm_pool") == "map", {**vision, **text}
    strange = [
        f"{name} {value}"
        for name, value in options.items()
        if name not in _PLAIN and value and value not in ("token", "argmax")
    ]
    if is_siglip:
        strange = [item for item in strange if item.split()[0] not in _SIGLIP_ASKS]
        strange += [
            f"{name} {options.get(name)}"
            for name, values in _SIGLIP_ASKS.items()
            if options.get(name) not in values
        ]
    if strange:
        raise CheckpointError(
            f"{weights.OPEN_CLIP} asks for {', '.join(strange)}, which is not built here; "
            "convert the model to transformers' CLIP"
        )
    state = {key: item for key, item in weights.read_tensors(file).items() if key not in _COUNTS}
    try:
        if "visual.conv1.weight" in state:
            pair, left = _openai(state, facts)
        elif is_siglip:
            pair, left = _siglip(state, facts)
        else:
            pair, left = _timm_and_bert(state, text)
    except (KeyError, IndexError, ValueError) as error:
        raise CheckpointError(
            f"{file.name} has no weights {error}: it is neither open_clip's or OpenAI's ViT with "
            "a text transformer nor timm's ViT with a BERT; convert it to transformers' CLIP"
        ) from error
    checkpoint.refuse_unknown(file.name, left)
    if not any((folder / name).is_file() for name in (weights.OPEN_CLIP, *weights.PROCESSORS)):
        # All of the image within a black square of 320 pixels, which becomes the input by bicubic
        # interpolation of numbers, without anti-aliasing.
        how = checkpoint.Preprocessing(320, Fit("pad", "lanczos"))
        pair = replace(pair, normalisation=CHEXZERO_LEVELS, preprocessing=how)
    return pair


def preprocessing(folder: Path, image_px: int) -> checkpoint.Preprocessing:
    """Read how images are made into inputs; CheckpointError where that is not known here."""
    tree = weights.read_json(folder / weights.OPEN_CLIP).get("preprocess_cfg", {})
    size, mode = tree.get("size", image_px), tree.get("resize_mode", "shortest")
    kind = tree.get("interpolation", "bicubic")
    if size not in (image_px, [image_px, image_px]) or mode not in {"shortest", "squash"}:
        raise CheckpointError(
            f"{weights.OPEN_CLIP} resizes {mode} to {size}; shortest and squash to "
            f"{image_px}, the side of the encoder's input, are read"
        )
    if kind not in {"bicubic", "bilinear"}:
        raise CheckpointError(
            f"{weights.OPEN_CLIP} has interpolation {kind}; give bicubic or bilinear"
        )
    fit = Fit("stretch", kind) if mode == "squash" else Fit("crop", kind, half_even=True)
    return checkpoint.Preprocessing(image_px, fit)


CHEXZERO_LEVELS = ((101.48761 / 255, 83.43944 / 255),)
"""Mean and spread of a grey level in CheXzero's `zero_shot.py`, on the scale 0 to 1."""


def _single_file(folder: Path) -> Path | None:
    if (folder / weights.CONFIG).is_file() or not folder.is_dir():
        return None
    files = [item for item in sorted(folder.iterdir()) if item.suffix in _SUFFIXES]
    return files[0] if len(files) == 1 else None


def _openai(
    state: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> tuple[checkpoint.Checkpoint, dict[str, Tensor]]:
    inner = {key.removeprefix("text."): value for key, value in state.items()}
    top = {name: inner.pop(name) for name in ("logit_scale", "logit_bias") if name in inner}
    maps = {
        "region_projection.weight": inner.pop("visual.proj").T.contiguous(),
        "projection.weight": inner.pop("text_projection").T.contiguous(),
    }
    sides = checkpoint.split(inner, ("visual.",))
    image, text = (checkpoint.renamed(side, _OPENAI, _OPENAI_QKV) for side in sides)
    act = "quick_gelu" if facts.get("quick_gelu") else "gelu"
    dim = len(maps["region_projection.weight"])
    width = image["embeddings.patch_embedding.weight"].shape[0]
    heads = max(1, width // facts.get("vision_cfg", {}).get("head_width", checkpoint.HEAD_WIDTH))
    vision_config = CLIPVisionConfig(
        **_image_sizes(image, heads, 1e-5), hidden_act=act, projection_dim=dim
    )
    words, width = text["embeddings.token_embedding.weight"].shape
    heads = max(1, width // checkpoint.HEAD_WIDTH)
    if "text_cfg" in facts:
        heads = facts["text_cfg"].get("heads", _TEXT_HEADS)
    text_config = CLIPTextConfig(
        **_text_sizes(text, heads, 1e-5),
        hidden_act=act,
        projection_dim=dim,
        eos_token_id=words - 1,
        bos_token_id=words - 2,
        pad_token_id=words - 1,
    )
    left = {
        f"{prefix}{key}": value
        for prefix, side in (("visual.", image), ("", text))
        for key, value in side.items()
        if not key.startswith(("embeddings.", "encoder.", "pre_", "post_", "final_"))
    }
    settings = {"max_tokens": text_config.max_position_embeddings, "pooling": "eos"}
    scale, bias = float(top["logit_scale"].exp()), float(top.get("logit_bias", 0.0))
    rest = maps, dim, FAMILY, scale, bias, settings
    return checkpoint.Checkpoint(vision_config, text_config, image, text, *rest), left


def _siglip(
    state: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> tuple[checkpoint.Checkpoint, dict[str, Tensor]]:
    trunk, text, left = checkpoint.split(state, ("visual.trunk.", "text."))
    for part in ("weight", "bias"):
        rows = [trunk.pop(f"attn_pool.{name}.{part}") for name in ("q", "kv")]
        trunk[f"head.attention.in_proj_{part}"] = torch.cat(rows)
    trunk["embeddings.position_embedding.weight"] = trunk.pop("pos_embed")[0]
    parts = ("weight", "bias")
    maps = {f"projection.{part}": text.pop(f"text_projection.{part}") for part in parts}
    image = checkpoint.renamed(trunk, _TIMM_SIGLIP, _TIMM_SIGLIP_QKV)
    text = checkpoint.renamed(text, _OPENAI, _OPENAI_QKV)
    width, own = trunk["embeddings.position_embedding.weight"].shape[1], facts["text_cfg"]
    maps["region_projection.weight"] = torch.eye(width)
    heads = 16 if width in _SIXTEEN_HEADS else max(1, width // checkpoint.HEAD_WIDTH)
    is_tanh = _TANH.search(facts["vision_cfg"]["timm_model_name"]), own.get("act_kwargs")
    acts = ["gelu_pytorch_tanh" if one else "gelu" for one in is_tanh]
    vision_config = SiglipVisionConfig(**_image_sizes(image, heads, 1e-6), hidden_act=acts[0])
    sizes = _text_sizes(text, own.get("heads", _TEXT_HEADS), 1e-6)
    text_config = SiglipTextConfig(
        **sizes, hidden_act=acts[1], bos_token_id=None, eos_token_id=None
    )
    settings = {"max_tokens": text_config.max_position_embeddings, "pooling": "last"}
    scale, bias = (float(left.pop(f"logit_{name}")) for name in ("scale", "bias"))
    rest = maps, len(maps["projection.bias"]), FAMILY, math.exp(scale), bias, settings
    return checkpoint.Checkpoint(
        vision_config, text_config, image, text, *rest, is_canonical=True
    ), left


def _layers(
    state: Mapping[str, Tensor], prefix: str, width: int, heads: int, epsilon: float
) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "num_hidden_layers": checkpoint.depth(state, prefix),
        "num_attention_heads": heads,
        "intermediate_size": len(state[f"{prefix}0.mlp.fc1.bias"]),
        "layer_norm_eps": epsilon,
    }


def _image_sizes(
    state: Mapping[str, Tensor],
    heads: int,
    epsilon: float,
    prefix: str = "encoder.layers.",
    patches: str = "embeddings.patch_embedding.weight",
) -> dict[str, Any]:
    patch = state[patches]
    positions = state.get("embeddings.position_embeddings")  # of timm's, an image's in a batch
    if positions is None:
        positions = state["embeddings.position_embedding.weight"]
    side = math.isqrt(positions.shape[-2])  # a class token aside
    return {
        **_layers(state, prefix, len(patch), heads, epsilon),
        "image_size": side * patch.shape[2],
        "patch_size": patch.shape[2],
        "num_channels": patch.shape[1],
    }


def _text_sizes(state: Mapping[str, Tensor], heads: int, epsilon: float) -> dict[str, Any]:
    words, width = state["embeddings.token_embedding.weight"].shape
    return {
        **_layers(state, "encoder.layers.", width, heads, epsilon),
        "vocab_size": words,
        "max_position_embeddings": len(state["embeddings.position_embedding.weight"]),
    }


def _timm_and_bert(
    state: Mapping[str, Tensor], text_facts: Mapping[str, Any]
) -> tuple[checkpoint.Checkpoint, dict[str, Tensor]]:
    trunk, bert, left = checkpoint.split(state, ("visual.trunk.", "text.transformer."))
    maps = {name: left.pop(key) for key, name in _MAPS.items() if key in left}
    image = checkpoint.renamed(trunk, _TIMM, _TIMM_QKV)
    pooler = text_facts.get("hf_pooler_type", text_facts.get("pooler_type"))
    pooler = pooler or "mean_pooler"
    if pooler not in _POOLERS:
        raise CheckpointError(
            f"{weights.OPEN_CLIP} pools texts by {pooler}; {' and '.join(_POOLERS)} are read"
        )
    settings = {
        "pooling": _POOLERS[pooler],
        "projection_width": len(maps.get("projection.0.weight", ())),
    }
    if limit := text_facts.get("context_length"):
        settings["max_tokens"] = limit
    scale, bias = float(left.pop("logit_scale").exp()), float(left.pop("logit_bias", 0.0))
    dim = len(maps["region_projection.weight"])
    patches = "embeddings.patch_embeddings.projection.weight"
    heads = max(1, len(image[patches]) // checkpoint.HEAD_WIDTH)
    vision = {"model_type": "vit", **_image_sizes(image, heads, 1e-6, "layers.", patches)}
    sizes = vision, checkpoint.bert_sizes(bert)
    return checkpoint.Checkpoint(
        *sizes, image, bert, maps, dim, FAMILY, scale, bias, settings
    ), left
