"""Encoders that others made: what their folder says of them, and their weights.

    transformers   config.json, model.safetensors, preprocessor_config.json, tokenizer.json: an
                   image encoder, a text encoder, or both in one space (CLIP, SigLIP)
    open_clip      open_clip_config.json and its weights, as BiomedCLIP has them: timm's ViT, a
                   BERT, and a map of each into the common space

`read_start` puts what folders say into the settings, so that a published model needs none of them.
Weights are read by transformers' own classes, which know the keys of older
releases, and every key is accounted for.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoModel,
    BertConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging as transformers_logging

from medclip_dcl.artifact import json_digest
from medclip_dcl.errors import CheckpointError, ConfigError
from medclip_dcl.files import sha256_file
from medclip_dcl.models.architectures import REFUSALS, TEXT_TYPES, build_config, own_fields
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.models.image_encoder import ImageEncoder, load_image_weights
from medclip_dcl.models.pairs import PairWeights, open_clip_pair, transformers_pair
from medclip_dcl.models.pretrained import LoadReport, fill, weights_file
from medclip_dcl.models.settings import ImageEncoderConfig, ModelConfig, TextEncoderConfig
from medclip_dcl.models.text_encoder import (
    CONFIG,
    TOKENIZER,
    TextEncoder,
    load_text_weights,
    read_bert_config,
    read_bert_tokenizer,
)
from medclip_dcl.settings import Section

_HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+)@([\w./-]*)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FETCHED = ("*.json", "*.txt", "model.safetensors", "open_clip_*")
PACKAGE = ("*.json", "*.md", "*.safetensors")
"""Files of a model package on a hub."""
_OPEN_CLIP = "open_clip_config.json"
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
# Heads of classifiers and language models, and what stands in for a masked patch.
_HEADS = (
    *("classifier.", "cls.", "decoder.", "head.", "lm_head.", "pooler.", "predictions."),
    *("embeddings.mask_token", "embeddings.position_ids"),
)
_FRESH = ("pooler.", "embeddings.mask_token")  # weights that no use is made of
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


def fetch_weights(path: Path, files: Sequence[str] = _FETCHED) -> Path:
    """Fetch OWNER/NAME@REVISION into the hub's cache, unless it is there; a path stays.

    `files` are patterns of what is fetched: by default an encoder's, `PACKAGE` of a model package.

    Raises:
        ConfigError: the revision is not a commit, or the weights cannot be had.
    """
    given = path.as_posix()
    match = _HUB_NAME.fullmatch(given)
    if match is None or path.exists():
        return path
    name, revision = match.groups()
    if not _COMMIT.fullmatch(revision):
        raise ConfigError(
            f"{given} names a branch or tag, whose weights may change; give the commit, 40 "
            f"hexadecimal digits, that the hub shows for {name}"
        )
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(files)))
    except Exception as error:  # the hub's client raises those of its transport
        raise ConfigError(
            f"{given} cannot be fetched ({type(error).__name__}); accept its terms on the hub and "
            "set HF_TOKEN where it is gated, or name a folder that holds it"
        ) from error


# --- What a folder says


def _read_json(file: Path) -> dict[str, Any]:
    try:
        tree: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is missing or not JSON; give a whole folder") from error
    return tree


def _config_of(folder: Path) -> PreTrainedConfig:
    kind = _read_json(folder / CONFIG).get("model_type")
    if kind not in CONFIG_MAPPING:
        raise CheckpointError(
            f"config.json of {folder} has model_type {kind}, which transformers does not know; its "
            "own code is not run here"
        )
    config: PreTrainedConfig = AutoConfig.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    config._attn_implementation = None  # it may name a kernel that a hub keeps
    return config


def plain_tree(config: PreTrainedConfig) -> dict[str, Any]:
    """Give an encoder's own fields that differ from its class's, `model_type` with them."""
    tree, known = config.to_diff_dict(), own_fields(config.model_type)
    return {name: tree[name] for name in tree if name in known} | {"model_type": config.model_type}


def _normalisation(folder: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Read mean and spread of each channel, on the scale 0 to 1."""
    files = [folder / name for name in (*_PROCESSORS, _OPEN_CLIP) if (folder / name).is_file()]
    if not files:
        raise CheckpointError(
            f"{folder} has no {_PROCESSORS[0]}; set model.image.mean and model.image.std to what "
            "the encoder was trained with"
        )
    tree = _read_json(files[0])
    if files[0].name == _OPEN_CLIP:
        tree = tree.get("preprocess_cfg", {})
        tree = {"image_mean": tree.get("mean"), "image_std": tree.get("std")}
    tree = tree.get("image_processor", tree)
    mean, std = tree.get("image_mean"), tree.get("image_std")
    if not tree.get("do_normalize", True):
        mean, std = [0.0], [1.0]
    if not mean or not std:
        raise CheckpointError(
            f"{files[0]} names no image_mean and image_std; set model.image.mean and std"
        )
    # Levels of 0 to 255 are multiplied by the factor first.
    top = 255 * tree.get("rescale_factor", 1 / 255) if tree.get("do_rescale", True) else 255.0
    return tuple(value / top for value in mean), tuple(value / top for value in std)


def describe_image(settings: ImageEncoderConfig, folder: Path | None) -> ImageEncoderConfig:
    """Put a vision transformer's sizes and normalisation, as its folder has them, into settings.

    Settings of another kind, or without a folder, come back as they are.

    Raises:
        CheckpointError: the folder lacks a file, or says what is not known here.
    """
    if settings.kind != "vit" or folder is None:
        return settings
    if settings.backbone:
        return _described(settings, settings.backbone, folder)
    config = _config_of(folder)
    return _described(settings, getattr(config, "vision_config", config), folder)


def _described(
    settings: ImageEncoderConfig, sizes: PreTrainedConfig | Mapping[str, Any], folder: Path
) -> ImageEncoderConfig:
    tree = plain_tree(sizes) if isinstance(sizes, PreTrainedConfig) else dict(sizes)
    mean, std = (settings.mean, settings.std) if settings.mean else _normalisation(folder)
    update = {"kind": "vit", "backbone": tree, "mean": mean, "std": std}
    return settings.model_copy(update=update)


def packaged_text_config(folder: Path) -> PreTrainedConfig:
    """Read the configuration of a published model's text encoder; CheckpointError: not known."""
    tree = _read_json(folder / CONFIG)
    if tree.get("model_type", "bert") == "bert":
        return read_bert_config(folder)
    try:
        return build_config(tree, TEXT_TYPES, f"{folder.name}/{CONFIG}")
    except ConfigError as error:
        raise CheckpointError(str(error)) from error


def _text_config(folder: Path) -> PreTrainedConfig:
    # What transformers does not know is read as BERT: CXR-BERT has a type of its own.
    kind = _read_json(folder / CONFIG).get("model_type", "bert")
    if kind == "bert" or kind not in CONFIG_MAPPING:
        return read_bert_config(folder)
    config = _config_of(folder)
    return getattr(config, "text_config", config)


def read_tokenizer(folder: Path, config: PreTrainedConfig) -> PreTrainedTokenizerBase:
    """Read the tokenizer of a text encoder, which pads on the right.

    Raises:
        CheckpointError: its files are missing or damaged, or do not fit the encoder.
    """
    if isinstance(config, BertConfig):
        tokenizer: Any = read_bert_tokenizer(folder)
    elif not (folder / TOKENIZER).is_file():
        raise CheckpointError(
            f"{folder} has no {TOKENIZER}; write one with AutoTokenizer's save_pretrained"
        )
    else:
        try:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        except (OSError, *REFUSALS) as error:
            raise CheckpointError(f"the tokenizer of {folder} cannot be read") from error
        tokenizer.padding_side = "right"
    if tokenizer.pad_token_id is None:
        raise CheckpointError(f"the tokenizer of {folder} has no pad_token; name one in its files")
    if len(tokenizer) > config.vocab_size:
        raise CheckpointError(
            f"the tokenizer has {len(tokenizer)} word pieces, the model {config.vocab_size}; use "
            "the tokenizer of the same checkpoint"
        )
    read: PreTrainedTokenizerBase = tokenizer
    return read


def _describe_text(
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
            tree = _read_json(file)
            said = [name for name, is_on in tree.items() if is_on is True]
            words = (*said, str(tree.get("pooling_mode")))
            found = [_POOLINGS[word] for word in words if word in _POOLINGS]
            if len(found) != 1:
                raise CheckpointError(
                    f"{file} asks for a pooling that is not known here; set model.text.pooling"
                )
            pooling = found[0]
    longest = [settings.max_tokens, config.max_position_embeddings, tokenizer.model_max_length]
    if config.model_type in _OFFSET_POSITIONS:
        longest[1] -= config.pad_token_id + 1
    if (file := folder / "sentence_bert_config.json").is_file():
        longest.append(_read_json(file).get("max_seq_length") or settings.max_tokens)
    return settings.model_copy(update={"pooling": pooling, "max_tokens": int(min(longest))})


# --- Weights


@contextmanager
def _quiet() -> Iterator[None]:
    # transformers draws a bar, and prints a table of keys that are accounted for here
    level, bars = (
        transformers_logging.get_verbosity(),
        transformers_logging.is_progress_bar_enabled(),
    )
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _load(folder: Path, config: PreTrainedConfig) -> tuple[Any, tuple[str, ...]]:
    """Load a checkpoint's safetensors into its own class; also the keys of heads left aside."""
    if not (folder / "model.safetensors").is_file():
        raise CheckpointError(
            f"{folder} has no model.safetensors; write one with save_pretrained, since other files "
            "may hold code"
        )
    try:
        with _quiet():
            model, found = AutoModel.from_pretrained(
                folder,
                config=config,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
            )
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"weights of {folder} cannot be read as {config.model_type}; its config.json and its "
            "model.safetensors must be of one release"
        ) from error
    lost = sorted(key for key in found["missing_keys"] if not key.startswith(_FRESH))
    left = sorted(key for key in found["unexpected_keys"] if not key.startswith(_HEADS))
    if lost or left:
        raise CheckpointError(
            f"weights of {folder}: {len(lost)} missing {tuple(lost[:3])}, {len(left)} unknown "
            f"{tuple(left[:3])}; give weights of the architecture that config.json describes"
        )
    return model, tuple(sorted(found["unexpected_keys"]))


def _counted(report: LoadReport, left: tuple[str, ...]) -> LoadReport:
    unexpected = tuple(sorted({*report.unexpected, *left}))
    return LoadReport(report.matched, report.missing, unexpected, report.layout)


def _load_vit_weights(encoder: ImageEncoder, folder: Path) -> LoadReport:
    """Fill a vision transformer from a folder; position embeddings follow the input's size.

    Raises:
        CheckpointError: the weights are missing, damaged or of another architecture.
    """
    config = _config_of(folder)
    model, left = _load(folder, config)
    vision = getattr(model, "vision_model", model)
    return _counted(_fill_vit(encoder, vision.state_dict()), left)


def _fill_vit(encoder: ImageEncoder, state: Mapping[str, Tensor]) -> LoadReport:
    own = encoder.backbone.state_dict()
    sized = {
        key: _resized(value, own[key])
        if "position_embed" in key and key in own and own[key].shape != value.shape
        else value
        for key, value in state.items()
    }
    return fill(encoder.backbone, sized, _HEADS, _FRESH, layout=encoder.backbone.config.model_type)


def _resized(positions: Tensor, like: Tensor) -> Tensor:
    # As transformers interpolates them in every pass: here once, and then they are trained.
    rows, width = positions.reshape(-1, positions.shape[-1]), positions.shape[-1]
    old, new = math.isqrt(len(rows)), math.isqrt(like.numel() // width)
    first = len(rows) - old**2  # of a class token
    grid = rows[first:].T.reshape(1, width, old, old)
    grid = functional.interpolate(grid, size=(new, new), mode="bicubic", align_corners=False)
    return torch.cat([rows[:first], grid.reshape(width, -1).T]).reshape_as(like)


def _load_text_tower(encoder: TextEncoder, folder: Path) -> LoadReport:
    """Fill a text encoder other than BERT from a folder; the projection stays as it is.

    Raises:
        CheckpointError: the weights are missing, damaged or of another architecture.
    """
    config = _config_of(folder)
    model, left = _load(folder, config)
    state = getattr(model, "text_model", model).state_dict()
    report = fill(encoder.backbone, state, _HEADS, layout=encoder.backbone.config.model_type)
    return _counted(report, left)


@dataclass(frozen=True)
class Start:
    """Start of both encoders: settings, configuration, tokenizer and weights."""

    settings: ModelConfig
    """What was asked for, with what the folders say of sizes, normalisation and pooling."""
    text_config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    image: Path | None
    text: Path
    pair: PairWeights | None
    left: tuple[str, ...] = ()

    def fill(self, encoder: DualEncoder) -> dict[str, LoadReport]:
        """Fill an encoder that was built from the settings; CheckpointError as `fill`."""
        if self.pair is not None:
            return self._fill_pair(encoder, self.pair)
        load_text = (
            load_text_weights if isinstance(self.text_config, BertConfig) else _load_text_tower
        )
        reports = {"text": load_text(encoder.text, self.text)}
        if self.image is not None:
            is_vit = encoder.image.kind == "vit"
            load_image = _load_vit_weights if is_vit else load_image_weights
            reports["image"] = load_image(encoder.image, self.image)
        return reports

    def _fill_pair(self, encoder: DualEncoder, pair: PairWeights) -> dict[str, LoadReport]:
        reports = {
            "image": _counted(_fill_vit(encoder.image, pair.image), self.left),
            "text": fill(encoder.text.backbone, pair.text, _HEADS),
        }
        maps = nn.ModuleDict(
            {"region_projection": encoder.region_projection, "projection": encoder.text.projection}
        )
        biases = {key: torch.zeros_like(value) for key, value in maps.state_dict().items()}
        biases = {key: value for key, value in biases.items() if key.endswith("bias")}
        reports["maps"] = fill(maps, biases | dict(pair.maps), heads=())
        with torch.no_grad():
            encoder.gamma.fill_(math.sqrt(self.settings.similarity.gamma_squared))
            if encoder.bias is not None and pair.bias is not None:
                encoder.bias.fill_(pair.bias)
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
    pair, left = _read_pair(text) if whole else (None, ())
    config = _text_config(text) if pair is None else pair.text_config
    tokenizer = read_tokenizer(text, config)
    if pair is None:
        update: dict[str, Section] = {"image": describe_image(settings.image, image)}
        said = settings.text
    else:
        update = {
            "image": _described(settings.image, pair.vision, text),
            "similarity": settings.similarity.model_copy(
                update={
                    "dim": len(pair.maps["region_projection.weight"]),
                    "gamma_squared": min(max(pair.scale, 1.0), 100.0),
                }
            ),
        }
        said = settings.text.model_copy(update=dict(pair.text_settings))
    update["text"] = _describe_text(said, config, tokenizer, text)
    return Start(settings.model_copy(update=update), config, tokenizer, image, text, pair, left)


def _read_pair(folder: Path) -> tuple[PairWeights, tuple[str, ...]]:
    """Read a CLIP or SigLIP, or BiomedCLIP in open_clip's layout; also keys of heads left aside."""
    if (folder / _OPEN_CLIP).is_file():
        return open_clip_pair(weights_file(folder), _read_json(folder / _OPEN_CLIP)), ()
    config = _config_of(folder)
    if config.model_type not in {"clip", "siglip"}:
        raise CheckpointError(
            f"model.pretrained has model_type {config.model_type}; give clip or siglip of "
            "transformers, or open_clip's BiomedCLIP, or set image.pretrained and text.pretrained"
        )
    model, left = _load(folder, config)
    return transformers_pair(model), left


def files_digest(folder: Path) -> str:
    """Hash the files next to a folder's weights, which say how inputs are made."""
    files = sorted(folder.rglob("*.json")) if folder.is_dir() else []
    return json_digest({file.relative_to(folder).as_posix(): sha256_file(file) for file in files})
