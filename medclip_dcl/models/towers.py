"""Encoders that others made: their weights, read into ours.

`read_start` puts what folders say (see `encoder_files`) into the settings, so that a published
model needs none of them. Weights are read by transformers' own classes, which know the keys of
older releases, and every key is accounted for.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, PreTrainedConfig, PreTrainedTokenizerBase

from medclip_dcl.core.settings import Section
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.models.encoder_files import (
    FRESH,
    HEADS,
    describe_image,
    describe_sizes,
    describe_text,
    load_model,
    read_config,
    read_text_config,
    read_tokenizer,
)
from medclip_dcl.models.image_encoder import ImageEncoder, load_image_weights
from medclip_dcl.models.pretrained import LoadReport, fill, fold_to_grey
from medclip_dcl.models.settings import ImageEncoderConfig, ModelConfig
from medclip_dcl.models.text_encoder import load_text_weights

if TYPE_CHECKING:  # whole models are read where one is the start
    from medclip_dcl.models.public.checkpoint import Checkpoint


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

    def fill(self, encoder: DualEncoder) -> dict[str, LoadReport]:
        """Fill an encoder that was built from the settings; CheckpointError as `fill`."""
        if self.pair is not None:
            return self._fill_pair(encoder, self.pair)
        if isinstance(self.text_config, BertConfig):
            reports = {"text": load_text_weights(encoder.text, self.text)}
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
    pair: Checkpoint | None = None
    if whole:
        from medclip_dcl.models.public import read_checkpoint  # where one is the start

        pair = read_checkpoint(text)
    config = read_text_config(text) if pair is None else pair.text_config
    tokenizer = read_tokenizer(text, config)
    text_settings, update = settings.text, dict[str, Section]()
    if pair is None:
        update["image"] = describe_image(settings.image, image)
    else:
        update["image"] = _image_settings(settings.image, pair, text)
        space: dict[str, Any] = {"dim": pair.dim, "gamma_squared": min(max(pair.scale, 1.0), 100.0)}
        if pair.family == "biovil":  # its maps have two layers
            space["kind"] = "biovil"
        update["similarity"] = settings.similarity.model_copy(update=space)
        text_settings = text_settings.model_copy(update=dict(pair.text_settings))
    update["text"] = describe_text(text_settings, config, tokenizer, text)
    return Start(settings.model_copy(update=update), config, tokenizer, image, text, pair)


def _image_settings(
    settings: ImageEncoderConfig, pair: "Checkpoint", folder: Path
) -> ImageEncoderConfig:
    if isinstance(pair.vision, ImageEncoderConfig):
        return pair.vision
    levels = settings.normalisation or pair.normalisation
    given = settings.model_copy(update={"normalisation": levels})
    return describe_sizes(given, pair.vision, folder)
