"""Encoders that others made: what the files next to their weights say, and the weights in ours.

`read_start` puts what folders say into the settings, so that a published model needs none of them.
Weights are read by transformers' own classes, which know the keys of older releases, and every key
is accounted for.

transformers   config.json, model.safetensors, preprocessor_config.json, tokenizer.json: an
               image encoder, a text encoder, or both in one space (CLIP, SigLIP)
open_clip      open_clip_config.json and its weights, as BiomedCLIP has them: timm's ViT, a
               BERT, and a map of each into the common space
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Regex, normalizers
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    BertConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from medclip_dcl.core.artifact import json_digest
from medclip_dcl.core.errors import CheckpointError, ConfigError
from medclip_dcl.core.files import sha256_file, write_text
from medclip_dcl.core.settings import Section
from medclip_dcl.models import architectures, text_encoder
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.models.image_encoder import ImageEncoder, load_image_weights
from medclip_dcl.models.public.weights import (
    CONFIG,
    FRESH,
    HEADS,
    OPEN_CLIP,
    PROCESSORS,
    LoadReport,
    fill,
    fold_to_grey,
    load_model,
    read_config,
    read_json,
)
from medclip_dcl.models.settings import ImageEncoderConfig, ModelConfig, TextEncoderConfig

if TYPE_CHECKING:  # whole models are read where one is the start
    from medclip_dcl.models.public.checkpoint import Checkpoint, Preprocessing

_OFFSET_POSITIONS = {"camembert", "mpnet", "roberta", "xlm-roberta"}  # start behind the padding's
_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "eos",
    "cls": "cls",
    "mean": "mean",
    "lasttoken": "eos",
}
_OWN_POOLINGS = {"clip_text_model": "eos", "siglip_text_model": "last"}


def plain_tree(config: PreTrainedConfig) -> dict[str, Any]:
    """Return an encoder's own fields that differ from its class's, `model_type` with them."""
    tree, fields = config.to_diff_dict(), architectures.own_fields(config.model_type)
    return {name: tree[name] for name in tree if name in fields} | {"model_type": config.model_type}


def _normalisation(folder: Path) -> tuple[tuple[float, float], ...]:
    """Read mean and spread of each channel, on the scale 0 to 1."""
    files = [folder / name for name in (*PROCESSORS, OPEN_CLIP) if (folder / name).is_file()]
    if not files:
        raise CheckpointError(
            f"{folder} has no {PROCESSORS[0]}; set model.image.normalisation to what the "
            "encoder was trained with"
        )
    tree = read_json(files[0])
    if files[0].name == OPEN_CLIP:
        tree = tree.get("preprocess_cfg", {})
        tree = {"image_mean": tree.get("mean"), "image_std": tree.get("std")}
    tree = tree.get("image_processor", tree)
    mean, std = tree.get("image_mean"), tree.get("image_std")
    if not tree.get("do_normalize", True):
        mean, std = [0.0], [1.0]
    if not mean or not std:
        raise CheckpointError(
            f"{files[0]} names no image_mean and image_std; set model.image.normalisation"
        )
    # Levels of 0 to 255 are multiplied by the factor first.
    top = 255 * tree.get("rescale_factor", 1 / 255) if tree.get("do_rescale", True) else 255.0
    return tuple((level / top, spread / top) for level, spread in zip(mean, std, strict=True))


def describe_image(
    settings: ImageEncoderConfig, folder: Path | None, pair: "Checkpoint | None" = None
) -> ImageEncoderConfig:
    """Put a vision transformer's sizes and normalisation, as its folder has them, into settings.

    `pair`: the whole model that the folder holds. Settings of another kind, or without a folder,
    come back as they are.

    Raises:
        CheckpointError: the folder lacks a file, or says what is not known here.
    """
    sizes: PreTrainedConfig | Mapping[str, Any] = settings.backbone
    levels = settings.normalisation
    if pair is not None:
        if isinstance(pair.vision, ImageEncoderConfig):
            return pair.vision
        sizes, levels = pair.vision, levels or pair.normalisation
    if folder is None or (pair is None and settings.kind != "vit"):
        return settings
    if not sizes:
        config = read_config(folder)
        sizes = getattr(config, "vision_config", config)
    tree = plain_tree(sizes) if isinstance(sizes, PreTrainedConfig) else dict(sizes)
    update = {"kind": "vit", "backbone": tree, "normalisation": levels or _normalisation(folder)}
    return settings.model_copy(update=update)


def packaged_text_config(folder: Path) -> PreTrainedConfig:
    """Read the configuration of a published model's text encoder; CheckpointError: not known."""
    tree = read_json(folder / CONFIG)
    if tree.get("model_type", "bert") == "bert":
        return text_encoder.read_bert_config(folder)
    try:
        return architectures.build_config(tree, architectures.TEXT_TYPES, f"{folder.name}/{CONFIG}")
    except ConfigError as error:
        raise CheckpointError(str(error)) from error


def read_text_config(folder: Path) -> PreTrainedConfig:
    """Read the configuration of the text encoder of a checkpoint; CheckpointError."""
    # What transformers does not know is read as BERT: CXR-BERT has a type of its own.
    kind = read_json(folder / CONFIG).get("model_type", "bert")
    if kind == "bert" or kind not in CONFIG_MAPPING:
        return text_encoder.read_bert_config(folder)
    config = read_config(folder)
    return getattr(config, "text_config", config)


def read_tokenizer(folder: Path, config: PreTrainedConfig) -> PreTrainedTokenizerBase:
    """Read the tokenizer of a text encoder, which pads on the right.

    Raises:
        CheckpointError: its files are missing or damaged, or do not fit the encoder.
    """
    if isinstance(config, BertConfig):
        tokenizer: Any = text_encoder.read_bert_tokenizer(folder)
    elif not (folder / text_encoder.TOKENIZER).is_file():
        raise CheckpointError(
            f"{folder} has no {text_encoder.TOKENIZER}; write one with AutoTokenizer's "
            "save_pretrained"
        )
    else:
        tokenizer = text_encoder.load_tokenizer(PreTrainedTokenizerFast, folder)
        tokenizer.padding_side = "right"
    if tokenizer.pad_token_id is None:
        raise CheckpointError(f"the tokenizer of {folder} has no pad_token; name one in its files")
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise CheckpointError(f"the tokenizer of {folder} has no word pieces; copy whole files")
    if len(tokenizer) > config.vocab_size:
        raise CheckpointError(
            f"the tokenizer has {len(tokenizer)} word pieces, the model {config.vocab_size}; use "
            "the tokenizer of the same checkpoint"
        )
    read: PreTrainedTokenizerBase = tokenizer
    return read


def canonicalise(tokenizer: Any) -> None:
    """Let a tokenizer read texts in small letters and without punctuation.

    Source: open_clip's `canonicalize_text`; its mending of broken Unicode and HTML is not done.
    """
    steps = [
        normalizers.Replace("_", " "),
        normalizers.Replace(Regex(r"[!-%'-/:-@\[-`{-~]|[\&]"), ""),
        normalizers.Lowercase(),
        normalizers.Replace(Regex(r"\s+"), " "),
        normalizers.Strip(),
    ]
    own = tokenizer.backend_tokenizer
    own.normalizer = normalizers.Sequence([*steps, *([own.normalizer] if own.normalizer else [])])


def describe_text(
    settings: TextEncoderConfig,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
) -> TextEncoderConfig:
    """Put a text encoder's own pooling and longest input into settings.

    A sentence encoder says both in files of its own.
    """
    pooling: str = settings.pooling
    if pooling == "auto":
        pooling = _OWN_POOLINGS.get(config.model_type, "cls")
        if config.model_type == "modernbert":
            pooling = config.classifier_pooling
        if (file := folder / "1_Pooling" / CONFIG).is_file():
            tree = read_json(file)
            modes = [name for name, is_on in tree.items() if is_on is True]
            words = (*modes, str(tree.get("pooling_mode")))
            poolings = [_POOLINGS[word] for word in words if word in _POOLINGS]
            if len(poolings) != 1:
                raise CheckpointError(
                    f"{file} asks for a pooling that is not known here; set model.text.pooling"
                )
            pooling = poolings[0]
    longest = [settings.max_tokens, config.max_position_embeddings, tokenizer.model_max_length]
    if config.model_type in _OFFSET_POSITIONS:
        longest[1] -= config.pad_token_id + 1
    if (file := folder / "sentence_bert_config.json").is_file():
        longest.append(read_json(file).get("max_seq_length") or settings.max_tokens)
    return settings.model_copy(update={"pooling": pooling, "max_tokens": int(min(longest))})


def files_digest(folder: Path) -> str:
    """Hash the files next to a folder's weights, which say how inputs are made."""
    files = sorted(folder.rglob("*.json")) if folder.is_dir() else []
    return json_digest({file.relative_to(folder).as_posix(): sha256_file(file) for file in files})


# --- Weights


def _counted(report: LoadReport, left: tuple[str, ...]) -> LoadReport:
    unexpected = tuple(sorted({*report.unexpected, *left}))
    return LoadReport(report.matched, report.missing, unexpected, report.layout)


def _read_tower(folder: Path, side: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    # Weights of one side of a pair, or of a whole encoder; and keys of heads that are left aside.
    model, left = load_model(folder, read_config(folder))
    return getattr(model, side, model).state_dict(), left


def _fill_vit(encoder: ImageEncoder, state: Mapping[str, Tensor]) -> LoadReport:
    # Position embeddings follow the size of the input.
    own = encoder.backbone.state_dict()
    sized = {
        key: _resized(value, own[key])
        if "position_embed" in key and key in own and own[key].shape != value.shape
        else value
        for key, value in state.items()
    }
    return fill(encoder.backbone, sized, HEADS, FRESH, layout=encoder.backbone.config.model_type)


def _resized(positions: Tensor, like: Tensor) -> Tensor:
    # As transformers interpolates them in every pass: here once, and then they are trained.
    rows, width = positions.reshape(-1, positions.shape[-1]), positions.shape[-1]
    old, new = math.isqrt(len(rows)), math.isqrt(like.numel() // width)
    first = len(rows) - old**2  # of a class token
    grid = rows[first:].T.reshape(1, width, old, old)
    grid = functional.interpolate(grid, size=(new, new), mode="bicubic", align_corners=False)
    return torch.cat([rows[:first], grid.reshape(width, -1).T]).reshape_as(like)


@dataclass(frozen=True)
class Start:
    """Start of both encoders: settings, configuration, tokenizer and weights."""

    settings: ModelConfig
    """What was asked for, with what the folders say of sizes, normalisation and pooling."""
    text_config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    image: Path | None
    text: Path
    pair: "Checkpoint | None"

    def write_text_files(self, folder: Path) -> None:
        """Write configuration and tokenizer of the text encoder as a model package has them."""
        tree = plain_tree(self.text_config)
        if isinstance(self.text_config, BertConfig):
            fields = {name: getattr(self.text_config, name) for name in text_encoder.BERT_FIELDS}
            tree = {"architectures": ["BertModel"], "model_type": "bert", **fields}
        write_text(folder / CONFIG, json.dumps(tree, indent=1, sort_keys=True) + "\n")
        self.tokenizer.save_pretrained(str(folder))

    def fill(self, encoder: DualEncoder) -> dict[str, LoadReport]:
        """Fill an encoder that was built from the settings; CheckpointError as `fill`."""
        if self.pair is not None:
            return self._fill_pair(encoder, self.pair)
        if isinstance(self.text_config, BertConfig):
            reports = {"text": text_encoder.load_text_weights(encoder.text, self.text)}
        else:
            state, left = _read_tower(self.text, "text_model")
            kind = self.text_config.model_type
            report = fill(encoder.text.backbone, state, HEADS, layout=kind)
            reports = {"text": _counted(report, left)}
        if self.image is not None and encoder.image.kind == "vit":
            state, left = _read_tower(self.image, "vision_model")
            reports["image"] = _counted(_fill_vit(encoder.image, state), left)
        elif self.image is not None:
            reports["image"] = load_image_weights(encoder.image, self.image)
        return reports

    def _fill_pair(self, encoder: DualEncoder, pair: "Checkpoint") -> dict[str, LoadReport]:
        if encoder.image.kind == "vit":
            image = _counted(_fill_vit(encoder.image, pair.image), pair.left)
        else:
            backbone = encoder.image.backbone
            image = fill(backbone, fold_to_grey(pair.image, backbone), heads=())
        reports = {"image": image, "text": fill(encoder.text.backbone, pair.text, HEADS)}
        maps = nn.ModuleDict(
            {"region_projection": encoder.region_projection, "projection": encoder.text.projection}
        )
        biases = {key: torch.zeros_like(value) for key, value in maps.state_dict().items()}
        biases = {key: value for key, value in biases.items() if key.endswith("bias")}
        reports["maps"] = fill(maps, biases | dict(pair.maps), heads=())
        with torch.no_grad():
            encoder.gamma.fill_(math.sqrt(self.settings.similarity.gamma_squared))
        return reports


def read_start(settings: ModelConfig, image: Path | None, text: Path, *, whole: bool) -> Start:
    """Read what folders say of encoders; weights are read by `Start.fill`, a whole model's here.

    Args:
        settings: what was asked for.
        image: folder or file of the image encoder's weights; None: random ones.
        text: folder of the text encoder, or of the whole model.
        whole: whether that is what it is.

    Raises:
        CheckpointError: a file is missing, damaged, or of a kind that is not known here.
    """
    pair = read_checkpoint(text) if whole else None
    config = read_text_config(text) if pair is None else pair.text_config
    tokenizer = read_tokenizer(text, config)
    if pair is not None and pair.is_canonical:
        config.pad_token_id = tokenizer.pad_token_id
        canonicalise(tokenizer)
    text_settings, update = settings.text, dict[str, Section]()
    update["image"] = describe_image(settings.image, text if pair else image, pair)
    if pair is not None:
        space: dict[str, Any] = {"dim": pair.dim, "gamma_squared": min(max(pair.scale, 1.0), 100.0)}
        if pair.similarity:
            space["kind"] = pair.similarity
        update["similarity"] = settings.similarity.model_copy(update=space)
        text_settings = text_settings.model_copy(update=dict(pair.text_settings))
    update["text"] = describe_text(text_settings, config, tokenizer, text)
    return Start(settings.model_copy(update=update), config, tokenizer, image, text, pair)


def read_checkpoint(folder: Path) -> "Checkpoint":
    """Read a whole model from its folder.

    Raises:
        CheckpointError: a file is missing or damaged, or of a kind that is not known here.
    """
    from . import biovil, cxr_clip, open_clip, transformers_pair  # where one is the start

    whole = biovil.read(folder) or cxr_clip.read(folder) or open_clip.read(folder)
    return whole or transformers_pair.read(folder)


def read_preprocessing(folder: Path, pair: "Checkpoint", image_px: int) -> "Preprocessing":
    """Read how the maker of a model of this folder turns an image into an input of `image_px`.

    Raises:
        CheckpointError: the folder does not say it, or in a way that is not known here.
    """
    from . import checkpoint, open_clip

    if pair.preprocessing:
        return pair.preprocessing
    if pair.family == open_clip.FAMILY and (folder / OPEN_CLIP).is_file():
        return open_clip.preprocessing(folder, image_px)
    for name in PROCESSORS:
        if (folder / name).is_file():
            tree = read_json(folder / name)
            return checkpoint.processor_fit(tree.get("image_processor", tree), image_px, name)
    raise CheckpointError(
        f"{folder} has no {PROCESSORS[0]}, which says how images are made into inputs; add it"
    )
