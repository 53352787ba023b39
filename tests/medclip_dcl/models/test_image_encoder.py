from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageClassification

from medclip_dcl.core.errors import CheckpointError, ConfigError
from medclip_dcl.models.image_encoder import ImageEncoder, load_image_weights, to_input
from medclip_dcl.models.settings import RESNETS, ImageEncoderConfig
from tests.support.resnet import torchvision_map, torchvision_weights
from tests.support.tiny_models import random_images, tiny_dual_encoder, tiny_model_config

BASIC = ImageEncoderConfig(depths=(2, 1), widths=(8, 16), input_px=32)
BOTTLENECK = ImageEncoderConfig(depths=(1, 2), widths=(16, 32), layer="bottleneck", input_px=32)


def test_channels_last_changes_memory_and_not_values() -> None:
    encoder = ImageEncoder(BASIC).eval()
    pixels = torch.randn(2, 1, 64, 64)
    expected = encoder(pixels)
    features = encoder.to(memory_format=torch.channels_last)(pixels)
    assert features.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(features, expected, atol=1e-5, rtol=1e-4)


STAGES = {"depths": [2, 1], "hidden_sizes": [8, 16]}
RESNET = {**STAGES, "model_type": "resnet", "embedding_size": 8, "layer_type": "basic"}

NORM = "hidden_states_norms.stage2"  # which a classifier of ConvNeXt has not
CONVNEXT = {**STAGES, "model_type": "convnext", "num_stages": 2}
SWIN = {
    "model_type": "swin",
    "image_size": 64,
    "embed_dim": 8,
    "depths": [1, 1],
    "num_heads": [1, 2],
    "window_size": 4,
}
DINO = {
    "model_type": "dinov2",
    "image_size": 64,
    "patch_size": 16,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def settings(tree: dict[str, Any], **more: Any) -> ImageEncoderConfig:
    asked = {"kind": "backbone", "backbone": tree, "input_px": 64, **more}
    return ImageEncoderConfig.model_validate(asked)


@pytest.mark.parametrize(
    ("image", "input_px", "cells", "width"),
    [
        (tiny_model_config().image, 128, 8, 16),
        (ImageEncoderConfig(depths=(1,), widths=(8,)), 64, 16, 8),
        (BOTTLENECK, 64, 8, 32),
        (tiny_model_config().image, 100, 7, 16),
        (settings(CONVNEXT), 64, 8, 16),
        (settings(SWIN), 64, 8, 16),
        (settings(DINO), 64, 4, 16),
    ],
)
def test_any_backbone_with_a_map_becomes_regions(image, input_px, cells, width) -> None:
    config = tiny_model_config().model_copy(update={"image": image})
    model, again = (tiny_dual_encoder(config).eval() for _ in range(2))
    images = torch.from_numpy(random_images(2, input_px)).unsqueeze(1).float()
    regions = model.encode_images(images)
    assert regions.shape == (2, cells, cells, 16)
    assert (model.image.grid(input_px), model.image.width) == (cells, width)
    assert torch.equal(again.encode_images(images), regions)  # one seed, one start


@pytest.mark.parametrize(
    ("tree", "encoder", "stem", "missing"),
    [
        (RESNET, BASIC, "embedder.embedder.convolution", ()),
        (CONVNEXT, settings(CONVNEXT), "embeddings", (f"{NORM}.bias", f"{NORM}.weight")),
    ],
    ids=["resnet", "convnext"],
)
def test_a_classifiers_checkpoint_of_colours_fills_its_backbone_and_says_what_it_lacks(
    tmp_path, tree, encoder, stem, missing
):
    source = AutoModelForImageClassification.from_config(AutoConfig.for_model(**tree))
    save_file(source.state_dict(), tmp_path / "model.safetensors")
    filled = ImageEncoder(encoder)
    report, backbone = load_image_weights(filled, tmp_path), filled.backbone
    assert report.missing == missing
    assert all(key.startswith(("classifier.", "layernorm.")) for key in report.unexpected)
    assert len(report.matched) == len(backbone.state_dict()) - len(missing)
    grey = torch.randn(1, 1, 64, 64)
    theirs = source.base_model.get_submodule(stem)(grey.expand(-1, 3, -1, -1))
    torch.testing.assert_close(backbone.get_submodule(stem)(grey), theirs)


@pytest.mark.parametrize(
    "tree", [{"model_type": "timm_backbone"}, {"model_type": "nobody"}, {**SWIN, "depths": "two"}]
)
def test_a_backbone_that_cannot_be_built_is_refused(tree: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"model\.image\.backbone"):
        ImageEncoder(settings(tree))
    with pytest.raises(ConfigError, match="takes no input of 8 pixels"):
        ImageEncoder(settings({**CONVNEXT, "patch_size": 16}, input_px=8))


@pytest.mark.parametrize(
    ("tree", "rule"),
    [
        ({"kind": "backbone"}, "backbone"),
        ({"backbone": CONVNEXT}, "backbone"),
        ({"kind": "backbone", "backbone": {"a": 1}}, "model_type"),
        ({"kind": "resnet50", "layer": "basic"}, "not that of resnet50"),
    ],
)
def test_kind_and_description_go_together(tree: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        ImageEncoderConfig.model_validate(tree)


def test_the_whole_image_becomes_minus_two_to_two_and_is_averaged_where_it_shrinks():
    levels = torch.tensor([[0, 51], [204, 255]], dtype=torch.uint8).unsqueeze(0)
    expected = torch.tensor([[-2.0, -1.2], [1.2, 2.0]])
    torch.testing.assert_close(to_input(levels, 2)[0, 0], expected)
    stripes, corner = np.zeros((2, 1, 64, 64), dtype=np.uint8)
    stripes[:, :, ::2] = 255  # of one pixel: picking pixels gives black or white
    assert to_input(stripes, 16)[0, 0, 4:-4, 4:-4].abs().max() < 0.1
    corner[:, :8, :8] = 255
    pixels = to_input(corner, 32)[0, 0]
    assert pixels[0, 0] > 1.9
    assert pixels[16:, 16:].max() < -1.9


def without_counters(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if not key.endswith("tracked")}


def biovil_t(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """BioViL-T: the trunk two modules down, BioViL's projector and its own parts next to it."""
    return {f"encoder.encoder.{key}": value for key, value in state.items()} | {
        "projector.model.0.weight": torch.zeros(4, 16, 1, 1),
        "projector.model.1.running_mean": torch.zeros(4),
        "encoder.backbone_to_vit.weight": torch.zeros(4, 16, 1, 1),
        "encoder.vit_pooler.blocks.0.norm1.weight": torch.zeros(4),
        "encoder.missing_previous_emb": torch.zeros(1, 4, 1, 1),
    }


@pytest.mark.parametrize("settings", [BASIC, BOTTLENECK], ids=["basic", "bottleneck"])
@pytest.mark.parametrize(
    ("layout", "name", "file"),
    [
        (lambda state: state, "torchvision", "weights.pth"),
        (without_counters, "torchvision", "older.safetensors"),
        (biovil_t, "biovil", "biovil_t.pt"),
    ],
)
def test_a_grey_image_gives_the_map_of_three_equal_channels(tmp_path, settings, layout, name, file):
    state = torchvision_weights(settings)
    save = save_file if file.endswith("safetensors") else torch.save
    save(layout(state), tmp_path / file)
    encoder = ImageEncoder(settings).eval()
    report = load_image_weights(encoder, tmp_path / file)
    grey = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    expected = torchvision_map(state, settings, grey.expand(-1, 3, -1, -1))
    torch.testing.assert_close(encoder(grey), expected, atol=1e-4, rtol=1e-4)
    assert report.layout == name
    own = encoder.backbone.state_dict()
    matched = without_counters(own) if layout is without_counters else own
    assert report.counts["matched"] == len(matched)
    assert report.missing == ()
    assert {"fc.bias", "fc.weight"} <= set(report.unexpected)


@pytest.mark.parametrize("kind", sorted(RESNETS))
def test_the_named_resnets_take_torchvisions_weights(tmp_path: Path, kind: str) -> None:
    settings = ImageEncoderConfig.model_validate({"kind": kind})
    with torch.device("meta"):
        encoder = ImageEncoder(settings)
    count = sum(weight.numel() for weight in encoder.parameters())
    millions = {"resnet18": 11.17, "resnet34": 21.28, "resnet50": 23.50, "resnet101": 42.49}
    assert count == pytest.approx(millions[kind] * 1e6, rel=1e-3)
    assert encoder.width == (512 if kind in {"resnet18", "resnet34"} else 2048)
    assert encoder.grid(480) == 15
    assert ImageEncoderConfig.model_validate_json(settings.model_dump_json()) == settings


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (lambda state: state.pop("layer2.0.conv1.weight"), "1 missing"),
        (lambda state: state.update({"layer3.0.conv1.weight": torch.zeros(1)}), "1 unknown"),
        (lambda state: state.update({"conv1.weight": torch.zeros(9, 3, 7, 7)}), "shape"),
    ],
)
def test_nothing_is_left_over_in_silence(tmp_path, harm, complaint):
    state = torchvision_weights(BASIC)
    harm(state)
    torch.save(state, tmp_path / "weights.pth")
    encoder = ImageEncoder(BASIC)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    with pytest.raises(CheckpointError, match=complaint):
        load_image_weights(encoder, tmp_path / "weights.pth")
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())
