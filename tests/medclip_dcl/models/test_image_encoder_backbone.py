from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from transformers import ConvNextConfig, ConvNextForImageClassification

from medclip_dcl.errors import ConfigError
from medclip_dcl.models.image_encoder import ImageEncoder, load_image_weights
from medclip_dcl.models.settings import ImageEncoderConfig
from testing.tiny_models import random_images, tiny_dual_encoder, tiny_model_config

CONVNEXT = {"model_type": "convnext", "num_stages": 2, "depths": [1, 1], "hidden_sizes": [8, 16]}
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
    return ImageEncoderConfig.model_validate(
        {"kind": "backbone", "backbone": tree, "input_px": 64, **more}
    )


@pytest.mark.parametrize(
    ("tree", "cells"), [(CONVNEXT, 8), (SWIN, 8), (DINO, 4)], ids=["convnext", "swin", "dinov2"]
)
def test_any_backbone_with_a_map_becomes_regions(tree: dict[str, Any], cells: int) -> None:
    image = settings(tree)
    model = tiny_dual_encoder(tiny_model_config().model_copy(update={"image": image})).eval()
    images = torch.from_numpy(random_images(2)).unsqueeze(1).float()
    regions = model.encode_images(images)
    assert regions.shape == (2, cells, cells, 16)
    assert (model.image.grid(64), model.image.width) == (cells, 16)
    again = tiny_dual_encoder(tiny_model_config().model_copy(update={"image": image}))
    assert torch.equal(again.eval().encode_images(images), regions)  # one seed, one start


def test_a_classifiers_checkpoint_fills_its_backbone_and_says_what_it_lacks(tmp_path: Path) -> None:
    config = ConvNextConfig(num_stages=2, depths=[1, 1], hidden_sizes=[8, 16], num_channels=3)
    source = ConvNextForImageClassification(config).eval()
    save_file(source.state_dict(), tmp_path / "model.safetensors")
    encoder = ImageEncoder(settings(CONVNEXT)).eval()
    report = load_image_weights(encoder, tmp_path)
    assert report.missing == (
        "hidden_states_norms.stage2.bias",
        "hidden_states_norms.stage2.weight",
    )
    assert all(key.startswith(("classifier.", "layernorm.")) for key in report.unexpected)
    grey = torch.randn(1, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    stem, patches = source.convnext.embeddings, encoder.backbone.embeddings
    torch.testing.assert_close(patches(grey), stem(grey.expand(-1, 3, -1, -1)))


@pytest.mark.parametrize(
    "tree", [{"model_type": "timm_backbone"}, {"model_type": "nobody"}, {**SWIN, "depths": "two"}]
)
def test_a_backbone_that_cannot_be_built_is_refused(tree: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"model\.image\.backbone"):
        ImageEncoder(settings(tree))


def test_a_size_that_the_backbone_does_not_take_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes no input of 8 pixels"):
        ImageEncoder(settings({**CONVNEXT, "patch_size": 16}, input_px=8))


@pytest.mark.parametrize(
    "tree",
    [{"kind": "backbone"}, {"backbone": CONVNEXT}, {"kind": "backbone", "backbone": {"a": 1}}],
)
def test_kind_and_description_go_together(tree: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ImageEncoderConfig.model_validate(tree)
