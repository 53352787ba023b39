"""Encoders that others made: their weights, read into ours.

`read_start` puts what folders say (see `encoder_files`) into the settings, so that a published
model needs none of them. Weights are read by transformers' own classes, which know the keys of
older releases, and every key is accounted for.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel, BertConfig, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.core.settings import Section
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.models.encoder_files import (
    OPEN_CLIP,
    describe_image,
    describe_sizes,
    describe_text,
    read_config,
    read_json,
    read_text_config,
    read_tokenizer,
)
from medclip_dcl.models.image_encoder import ImageEncoder, load_image_weights
from medclip_dcl.models.pretrained import LoadReport, fill, weights_file
from medclip_dcl.models.settings import ModelConfig
from medclip_dcl.models.text_encoder import TextEncoder, load_text_weights

if TYPE_CHECKING:  # whole models are read where one is the start
    from medclip_dcl.models.pairs import PairWeights

# Heads of classifiers and language models, and what stands in for a masked patch.
_HEADS = (
    *("classifier.", "cls.", "decoder.", "head.", "lm_head.", "pooler.", "predictions."),
    *("embeddings.mask_token", "embeddings.position_ids"),
)
_FRESH = ("pooler.", "embeddings.mask_token")  # weights that no use is made of


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
    config = read_config(folder)
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
    config = read_config(folder)
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
    pair: "PairWeights | None"
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

    def _fill_pair(self, encoder: DualEncoder, pair: "PairWeights") -> dict[str, LoadReport]:
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
    config = read_text_config(text) if pair is None else pair.text_config
    tokenizer = read_tokenizer(text, config)
    if pair is None:
        update: dict[str, Section] = {"image": describe_image(settings.image, image)}
        said = settings.text
    else:
        update = {
            "image": describe_sizes(settings.image, pair.vision, text),
            "similarity": settings.similarity.model_copy(
                update={
                    "dim": len(pair.maps["region_projection.weight"]),
                    "gamma_squared": min(max(pair.scale, 1.0), 100.0),
                }
            ),
        }
        said = settings.text.model_copy(update=dict(pair.text_settings))
    update["text"] = describe_text(said, config, tokenizer, text)
    return Start(settings.model_copy(update=update), config, tokenizer, image, text, pair, left)


def _read_pair(folder: Path) -> "tuple[PairWeights, tuple[str, ...]]":
    """Read a CLIP or SigLIP, or BiomedCLIP in open_clip's layout; also keys of heads left aside."""
    from medclip_dcl.models.pairs import open_clip_pair, transformers_pair

    if (folder / OPEN_CLIP).is_file():
        return open_clip_pair(weights_file(folder), read_json(folder / OPEN_CLIP)), ()
    config = read_config(folder)
    if config.model_type not in {"clip", "siglip"}:
        raise CheckpointError(
            f"model.pretrained has model_type {config.model_type}; give clip or siglip of "
            "transformers, or open_clip's BiomedCLIP, or set image.pretrained and text.pretrained"
        )
    model, left = _load(folder, config)
    return transformers_pair(model), left
