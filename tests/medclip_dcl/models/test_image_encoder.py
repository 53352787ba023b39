from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import ResNetConfig, ResNetForImageClassification

from medclip_dcl.errors import CheckpointError
from medclip_dcl.models.image_encoder import ImageEncoder, load_image_weights
from medclip_dcl.models.settings import ImageEncoderConfig

TINY = ImageEncoderConfig(depths=(1, 1), widths=(8, 16), input_px=64)


def test_resnet18_turns_480_px_into_15_by_15_cells_of_512() -> None:
    encoder = ImageEncoder(ImageEncoderConfig()).eval()
    with torch.no_grad():
        features = encoder(torch.zeros(1, 1, 480, 480))
    assert features.shape == (1, 512, 15, 15)
    assert (encoder.stride, encoder.grid(480), encoder.width) == (32, 15, 512)
    assert sum(p.numel() for p in encoder.parameters()) == pytest.approx(11.17e6, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "input_px", "grid"),
    [
        (ImageEncoderConfig(depths=(1, 1, 1), widths=(8, 8, 16)), 128, 8),
        (ImageEncoderConfig(depths=(1,), widths=(8,)), 64, 16),
        (ImageEncoderConfig(depths=(1, 1), widths=(16, 32), layer="bottleneck"), 64, 8),
        (ImageEncoderConfig(depths=(1, 1, 1), widths=(8, 8, 16)), 100, 7),
    ],
    ids=["three stages", "one stage", "bottleneck", "no multiple of the stride"],
)
def test_grid_is_what_the_map_has(settings: ImageEncoderConfig, input_px: int, grid: int) -> None:
    encoder = ImageEncoder(settings)
    assert encoder(torch.zeros(2, 1, input_px, input_px)).shape[2:] == (grid, grid)
    assert encoder.grid(input_px) == grid


def test_channels_last_changes_memory_and_not_values() -> None:
    encoder = ImageEncoder(TINY).eval()
    pixels = torch.randn(2, 1, 64, 64)
    expected = encoder(pixels)
    features = encoder.to(memory_format=torch.channels_last)(pixels)
    assert features.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(features, expected, atol=1e-5, rtol=1e-4)


def three_channel_checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3
    )
    state = ResNetForImageClassification(config).state_dict()
    save_file(state, folder / "model.safetensors")
    return state


def test_colour_checkpoint_gives_grey_images_what_three_equal_channels_gave(tmp_path: Path) -> None:
    state = three_channel_checkpoint(tmp_path)
    encoder = ImageEncoder(TINY)
    report = load_image_weights(encoder, tmp_path)
    grey = torch.randn(1, 1, 16, 16)
    stem = state["resnet.embedder.embedder.convolution.weight"]
    torch.testing.assert_close(
        encoder.backbone.embedder.embedder.convolution(grey),
        torch.conv2d(grey.expand(-1, 3, -1, -1), stem, stride=2, padding=3),
    )
    assert report.missing == ()
    assert all(key.startswith("classifier.") for key in report.unexpected)
    assert len(report.matched) == len(encoder.backbone.state_dict())


def test_checkpoint_of_another_depth_is_refused(tmp_path: Path) -> None:
    three_channel_checkpoint(tmp_path)
    deeper = ImageEncoder(ImageEncoderConfig(depths=(2, 1), widths=(8, 16)))
    with pytest.raises(CheckpointError, match="missing"):
        load_image_weights(deeper, tmp_path)
