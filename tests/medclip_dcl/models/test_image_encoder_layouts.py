from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from medclip_dcl.errors import CheckpointError
from medclip_dcl.models.image_encoder import ImageEncoder, load_image_weights
from medclip_dcl.models.settings import RESNETS, ImageEncoderConfig
from testing.resnet import torchvision_map, torchvision_weights

BASIC = ImageEncoderConfig(depths=(2, 1), widths=(8, 16), input_px=32)
BOTTLENECK = ImageEncoderConfig(depths=(1, 2), widths=(16, 32), layer="bottleneck", input_px=32)


def biovil(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """BioViL: the trunk two modules down, its own projector next to it."""
    trunk = {f"encoder.encoder.{key}": value for key, value in state.items()}
    head = {"projector.model.0.weight": torch.zeros(4, 16, 1, 1)}
    return trunk | head | {"projector.model.1.running_mean": torch.zeros(4)}


def biovil_t(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return biovil(state) | {
        "encoder.backbone_to_vit.weight": torch.zeros(4, 16, 1, 1),
        "encoder.vit_pooler.blocks.0.norm1.weight": torch.zeros(4),
        "encoder.missing_previous_emb": torch.zeros(1, 4, 1, 1),
    }


@pytest.mark.parametrize("settings", [BASIC, BOTTLENECK], ids=["basic", "bottleneck"])
@pytest.mark.parametrize(
    ("layout", "name", "file"),
    [
        (lambda state: state, "torchvision", "weights.pth"),
        (lambda state: state, "torchvision", "model.safetensors"),
        (lambda state: {"state_dict": state}, "torchvision", "nested.pt"),
        (biovil, "biovil", "biovil_image.pt"),
        (biovil_t, "biovil", "biovil_t.pt"),
    ],
    ids=["torchvision", "safetensors", "nested", "BioViL", "BioViL-T"],
)
def test_a_grey_image_gives_the_map_that_three_equal_channels_gave(
    tmp_path: Path,
    settings: ImageEncoderConfig,
    layout: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    name: str,
    file: str,
) -> None:
    state = torchvision_weights(settings)
    save = save_file if file.endswith("safetensors") else torch.save
    save(layout(state), tmp_path / file)
    encoder = ImageEncoder(settings).eval()
    report = load_image_weights(encoder, tmp_path / file)
    grey = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        encoder(grey),
        torchvision_map(state, settings, grey.expand(-1, 3, -1, -1)),
        atol=1e-4,
        rtol=1e-4,
    )
    assert report.layout == name
    assert report.counts["matched"] == len(encoder.backbone.state_dict())
    assert report.missing == ()
    assert {"fc.bias", "fc.weight"} <= set(report.unexpected)


@pytest.mark.parametrize("kind", sorted(RESNETS))
def test_the_named_resnets_take_torchvisions_weights(tmp_path: Path, kind: str) -> None:
    settings = ImageEncoderConfig.model_validate({"kind": kind})
    with torch.device("meta"):
        encoder = ImageEncoder(settings)
    own = {tuple(value.shape) for value in encoder.backbone.state_dict().values()}
    count = sum(weight.numel() for weight in encoder.parameters())
    millions = {"resnet18": 11.17, "resnet34": 21.28, "resnet50": 23.50, "resnet101": 42.49}
    assert count == pytest.approx(millions[kind] * 1e6, rel=1e-3)
    assert (encoder.width,) in own
    assert encoder.grid(480) == 15


def test_sizes_beside_a_name_must_be_its_own() -> None:
    with pytest.raises(ValueError, match="not that of resnet50"):
        ImageEncoderConfig.model_validate({"kind": "resnet50", "layer": "basic"})
    again = ImageEncoderConfig.model_validate_json(
        ImageEncoderConfig.model_validate({"kind": "resnet50"}).model_dump_json()
    )
    assert again.widths[-1] == 2048


def test_an_older_checkpoint_without_counters_is_taken(tmp_path: Path) -> None:
    state = torchvision_weights(BASIC)
    kept = {key: value for key, value in state.items() if not key.endswith("tracked")}
    save_file(kept, tmp_path / "model.safetensors")
    report = load_image_weights(ImageEncoder(BASIC), tmp_path)
    assert report.missing == ()


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (lambda state: state.pop("layer2.0.conv1.weight"), "1 missing"),
        (lambda state: state.update({"layer3.0.conv1.weight": torch.zeros(1)}), "1 unknown"),
        (lambda state: state.update({"conv1.weight": torch.zeros(9, 3, 7, 7)}), "shape"),
    ],
    ids=["missing", "unknown", "shape"],
)
def test_nothing_is_left_over_in_silence(
    tmp_path: Path, harm: Callable[[dict[str, Tensor]], object], complaint: str
) -> None:
    state = torchvision_weights(BASIC)
    harm(state)
    torch.save(state, tmp_path / "weights.pth")
    encoder = ImageEncoder(BASIC)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    with pytest.raises(CheckpointError, match=complaint):
        load_image_weights(encoder, tmp_path / "weights.pth")
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())
