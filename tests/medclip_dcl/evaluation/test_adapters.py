"""BioViL's release: files of its layout with random weights, against its formulas written out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.core.errors import CheckpointError, ConfigError
from medclip_dcl.evaluation import adapters, results
from medclip_dcl.evaluation.adapters import IMAGE_WEIGHTS, BioVil, load_adapter
from medclip_dcl.models.settings import ImageEncoderConfig
from pipelines.config import Config
from tests.support.bert import SENTENCES, tiny_bert, tiny_tokenizer, write_cxr_bert
from tests.support.evaluated import evaluate_here, write_evaluated
from tests.support.resnet import torchvision_map, torchvision_weights

SMALL = ImageEncoderConfig(depths=(1, 1), widths=(32, 64), layer="bottleneck", input_px=48)
DIM = 16
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 48, 48), dtype=np.uint8)
State = dict[str, torch.Tensor]


def projector_weights(width: int) -> State:
    """The image projector: convolutions of 1 x 1, the first without a bias, a batch norm."""
    drawn = torch.Generator().manual_seed(1)
    normal = {
        "0.weight": (DIM, width, 1, 1),
        "1.bias": (DIM,),
        "1.running_mean": (DIM,),
        "3.weight": (DIM, DIM, 1, 1),
        "3.bias": (DIM,),
    }
    state = {name: torch.randn(shape, generator=drawn) for name, shape in normal.items()}
    for name in ("1.weight", "1.running_var"):
        state[name] = torch.rand(DIM, generator=drawn) + 0.5
    return {f"projector.model.{name}": value for name, value in state.items()}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, State, State]:
    """Folder, weights of the image model, weights of CXR-BERT's head."""
    folder = tmp_path_factory.mktemp("release") / "biovil"
    write_cxr_bert(folder, tiny_bert())
    file = folder / "model.safetensors"
    state = load_file(file)
    drawn = torch.Generator().manual_seed(2)
    head = {
        name: torch.randn(value.shape, generator=drawn)
        for name, value in state.items()
        if name.startswith("cls_projection_head.")
    }
    save_file(state | head, file, metadata={"format": "pt"})
    trunk = torchvision_weights(SMALL)
    image = {f"encoder.encoder.{name}": value for name, value in trunk.items()}
    torch.save(image | projector_weights(SMALL.widths[-1]), folder / IMAGE_WEIGHTS)
    return folder, trunk, head


def projected(trunk: State) -> torch.Tensor:
    """The projected patches of `IMAGES`, as hi-ml's modules say."""
    pixels = (torch.from_numpy(IMAGES).float() / 255).unsqueeze(1).expand(-1, 3, -1, -1)
    maps = torchvision_map(trunk, SMALL, pixels)
    own = {
        name.removeprefix("projector.model."): value
        for name, value in projector_weights(maps.shape[1]).items()
    }
    x = functional.conv2d(maps, own["0.weight"])
    norm = [own[f"1.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
    x = functional.batch_norm(x, *norm).relu()
    return functional.conv2d(x, own["3.weight"], own["3.bias"])


@torch.no_grad()
def test_patches_are_projected_as_hi_ml_projects_them(release: tuple[Path, State, State]) -> None:
    folder, trunk, _ = release
    regions = BioVil(folder, SMALL).embed_images(IMAGES)
    torch.testing.assert_close(regions, projected(trunk).permute(0, 2, 3, 1), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_sentences_go_through_cxr_bert_s_head(release: tuple[Path, State, State]) -> None:
    folder, _, head = release
    tokens = tiny_tokenizer()(list(SENTENCES), padding=True, return_tensors="pt")
    x = tiny_bert().bert(**tokens).last_hidden_state[:, 0]
    own = {name.removeprefix("cls_projection_head."): value for name, value in head.items()}
    x = functional.linear(x, own["dense_to_hidden.weight"], own["dense_to_hidden.bias"])
    x = functional.gelu(x)
    scale, shift = own["LayerNorm.weight"], own["LayerNorm.bias"]
    x = functional.layer_norm(x, (DIM,), scale, shift, eps=1e-12)
    x = functional.linear(x, own["dense_to_output.weight"], own["dense_to_output.bias"])
    found = BioVil(folder, SMALL).embed_sentences(SENTENCES)
    torch.testing.assert_close(found, x, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_its_score_is_the_cosine_with_the_mean_projected_patch(
    release: tuple[Path, State, State], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, trunk, _ = release
    monkeypatch.setattr(adapters, "BioVil", lambda path: BioVil(path, SMALL))
    adapter: dict[str, Any] = {"model": "biovil", "weights": str(folder)}
    config = Config.model_validate({"work": "unused", "evaluate": {"adapter": adapter}})
    model = load_adapter(config)
    assert model.geometry == "biovil"  # whatever the config's is
    texts = model.embed_sentences(SENTENCES)
    mean = functional.normalize(projected(trunk).mean(dim=(2, 3)), dim=-1)  # not of unit patches
    found = model.score(model.embed_images(IMAGES), texts)
    torch.testing.assert_close(found, texts @ mean.T, rtol=1e-4, atol=1e-4)
    assert model.has_features
    assert model.embed_features(IMAGES).shape == (3, 1, 1, SMALL.widths[-1])
    adapter["similarity"] = "lse"
    other = Config.model_validate({"work": "unused", "evaluate": {"adapter": adapter}})
    regions = load_adapter(other).embed_images(IMAGES)
    assert regions.norm(dim=-1) == pytest.approx(torch.ones(regions.shape[:3]), abs=1e-5)


def test_it_is_evaluated_by_its_own_crop_with_every_question(
    release: tuple[Path, State, State], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "BioVil", lambda path: BioVil(path, SMALL))
    work = write_evaluated(tmp_path / "work")
    adapter = json.dumps({"model": "biovil", "weights": str(release[0])})
    settings = ("evaluate.probe_images=100",)
    evaluate_here(work, f"evaluate.adapter={adapter}", *settings)
    tree = results.read_figures(open_artifact(results.ARTIFACT.at(work), results.ARTIFACT))
    assert tree["geometry"] == "biovil"
    asked = {"zero_shot", "probe", "grounding", "boxes", "gallery", "reports"}
    assert asked <= {name for name, item in tree["questions"].items() if not item["absent"]}


def test_what_is_missing_of_the_release_is_named(tmp_path: Path) -> None:
    write_cxr_bert(tmp_path / "text", tiny_bert())
    with pytest.raises(CheckpointError, match=r"no weights at .*biovil_image_resnet50"):
        BioVil(tmp_path / "text", SMALL)
    trunk = {f"encoder.encoder.{name}": value for name, value in torchvision_weights(SMALL).items()}
    torch.save(trunk, tmp_path / "text" / IMAGE_WEIGHTS)
    with pytest.raises(CheckpointError, match="has no image projector"):
        BioVil(tmp_path / "text", SMALL)
    write_cxr_bert(tmp_path / "general", tiny_bert(), layout="general")
    both = trunk | projector_weights(SMALL.widths[-1])
    torch.save(both, tmp_path / "general" / IMAGE_WEIGHTS)
    with pytest.raises(CheckpointError, match="without its projection head"):
        BioVil(tmp_path / "general", SMALL)
    config = Config.model_validate({"work": "x", "evaluate": {"adapter": {"model": "biovil"}}})
    with pytest.raises(ConfigError, match=r"biovil needs evaluate.adapter.weights"):
        load_adapter(config)
