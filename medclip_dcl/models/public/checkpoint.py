"""What a public checkpoint holds: both encoders, their maps, the score, and how inputs are made."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import BertConfig, PreTrainedConfig

from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.data.limits import Filter, Fit
from medclip_dcl.models.settings import ImageEncoderConfig

_FILTERS: tuple[Filter, ...] = (
    "nearest",
    "lanczos",
    "bilinear",
    "bicubic",
    "box",
    "hamming",
)  # Pillow's numbers
HEAD_WIDTH = 64  # units of one attention head, in every model whose configuration names none


@dataclass(frozen=True)
class Preprocessing:
    """How a maker turns an image into the encoder's input."""

    size_px: int
    """Side of the 8-bit square, which the input is made of."""
    fit: Fit
    """How an image is brought to that square."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole model of other people's, in this project's terms."""

    vision: PreTrainedConfig | Mapping[str, Any] | ImageEncoderConfig
    """Sizes of the image encoder: a configuration of transformers, its fields, or settings."""
    text_config: PreTrainedConfig
    image: Mapping[str, Tensor]
    """Weights of the image encoder, by the keys of transformers' class."""
    text: Mapping[str, Tensor]
    """Weights of the text encoder, by the keys of transformers' class."""
    maps: Mapping[str, Tensor]
    """Weights of `region_projection` and `projection`; biases that are not there are 0."""
    dim: int
    """Width of the shared space."""
    family: str
    """Name of its family."""
    scale: float
    """Factor of a cosine in its logit, at the end of training."""
    bias: float = 0.0
    """What is added to that."""
    text_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the text encoder that only the file knows."""
    normalisation: tuple[tuple[float, float], ...] = ()
    """Mean and spread of each channel, where no file of the folder says them."""
    preprocessing: Preprocessing | None = None
    """How images become inputs, where no file of the folder says it."""
    similarity: str = ""
    """Kind of the similarity, where its maps have two layers."""
    is_canonical: bool = False
    """Whether texts are read in small letters, without punctuation, as big_vision's are."""
    left: tuple[str, ...] = ()
    """Keys of heads left aside."""


def processor_fit(tree: Mapping[str, Any], image_px: int, name: str) -> Preprocessing:
    """Read the resizing of a processor of transformers.

    Args:
        tree: preprocessor_config.json, or the image processor of processor_config.json.
        image_px: side of the encoder's input.
        name: what errors call the file.

    Raises:
        CheckpointError: it resizes in a way that is not known here.
    """
    is_siglip = str(tree.get("image_processor_type", "")).lower().startswith("siglip")
    size = tree.get("size", {"height": image_px, "width": image_px} if is_siglip else image_px)
    if isinstance(size, int):
        size = {"height": size, "width": size} if is_siglip else {"shortest_edge": size}
    crops = tree.get("do_center_crop", not is_siglip)
    crop = tree.get("crop_size", image_px) if crops else image_px
    crop = {"height": crop, "width": crop} if isinstance(crop, int) else crop
    number = tree.get("resample", _FILTERS.index("bicubic"))
    side = size.get("shortest_edge")
    is_square = crop == {"height": image_px, "width": image_px}
    is_whole = size.get("height") == size.get("width") == image_px
    is_cut = crops and isinstance(side, int) and side >= image_px
    if (
        not tree.get("do_resize", True)
        or tree.get("do_pad")
        or number not in range(len(_FILTERS))
        or not (is_square and (is_whole or is_cut))
    ):
        raise CheckpointError(
            f"{name} resizes to {size}, crops to {crop if crops else 'nothing'}, with filter "
            f"{number}: the encoder's input is a square of {image_px}, which is made by stretching "
            "or by cutting out the middle; correct the file"
        )
    kind = _FILTERS[number]
    fit = Fit("stretch", kind) if is_whole else Fit("crop", kind, resized_px=int(side or 0))
    return Preprocessing(image_px, fit)


def renamed(
    state: Mapping[str, Tensor], rules: Sequence[tuple[str, str]], fused: tuple[str, str]
) -> dict[str, Tensor]:
    """Return weights the names of transformers' classes; keys of no rule stay as they are.

    `rules` are patterns and what replaces them; `fused` is that of a projection whose rows hold
    queries, keys and values, and the names of its parts, with `{}` for q, k or v.
    """
    weights = {}
    for key, value in state.items():
        if match := re.fullmatch(fused[0], key):
            for letter, part in zip("qkv", value.chunk(3), strict=True):
                weights[match.expand(fused[1]).replace("{}", letter)] = part
            continue
        for pattern, name in rules:
            if match := re.match(pattern, key):
                key = match.expand(name) + key[match.end() :]
                break
        weights[key] = value
    return weights


def split(state: Mapping[str, Tensor], prefixes: Sequence[str]) -> list[dict[str, Tensor]]:
    """Split weights by the first prefix that a key has, and without it; last come those of none."""
    parts: dict[str, dict[str, Tensor]] = {prefix: {} for prefix in (*prefixes, "")}
    for key, value in state.items():
        prefix = next(prefix for prefix in parts if key.startswith(prefix))
        parts[prefix][key.removeprefix(prefix)] = value
    return list(parts.values())


def refuse_unknown(name: str, left: Mapping[str, Tensor]) -> None:
    """Refuse a file whose weights of these keys have no place; CheckpointError."""
    if left:
        raise CheckpointError(
            f"{name} has {len(left)} unknown keys ({', '.join(sorted(left)[:3])}); it is of "
            "another architecture: convert the model to transformers' CLIP"
        )


def depth(state: Mapping[str, Tensor], prefix: str) -> int:
    """Count the layers whose keys have a prefix before their number; KeyError: there are none."""
    numbers = {key[len(prefix) :].split(".")[0] for key in state if key.startswith(prefix)}
    if not numbers:
        raise KeyError(prefix)
    return 1 + max(map(int, numbers))


def bert_sizes(state: Mapping[str, Tensor]) -> BertConfig:
    """Read a BERT's sizes from its weights, heads of 64 units; KeyError: one is missing."""
    words = state["embeddings.word_embeddings.weight"]
    return BertConfig(
        vocab_size=len(words),
        hidden_size=words.shape[1],
        num_hidden_layers=depth(state, "encoder.layer."),
        num_attention_heads=max(1, words.shape[1] // HEAD_WIDTH),
        intermediate_size=len(state["encoder.layer.0.intermediate.dense.bias"]),
        max_position_embeddings=len(state["embeddings.position_embeddings.weight"]),
    )


def resnet_of(named: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read weights and sizes of a ResNet of bottleneck blocks, by transformers' keys."""
    blocks = {tuple(map(int, key.split(".")[2:5:2])) for key in named if ".layers." in key}
    stages = 1 + max((stage for stage, _ in blocks), default=-1)
    depths = [sum(stage == own for stage, _ in blocks) for own in range(stages)] or [0]
    last = "encoder.stages.{}.layers.0.layer.2.normalization.weight"
    sizes = {
        "kind": "resnet",
        "layer": "bottleneck",
        "depths": depths,
        "widths": [len(named[last.format(stage)]) for stage in range(len(depths))],
    }
    heads = ("fc.", "classifier.")
    return {key: item for key, item in named.items() if not key.startswith(heads)}, sizes
