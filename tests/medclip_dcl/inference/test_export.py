"""Other libraries load what is exported and answer as the model does, by the code of its page."""

import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnxruntime import InferenceSession
from PIL import Image, ImageOps

from medclip_dcl.core.errors import ArtifactCorrupt, CheckpointError, ConfigError
from medclip_dcl.data.images import open_image
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.inference.export import _IMAGE, Format, export_formats
from medclip_dcl.inference.predictor import load
from pipelines.__main__ import main
from pipelines.config import Config
from tests.house.tree import ROOT
from tests.support.dicom import dicom_bytes
from tests.support.published import SENTENCES, publish
from tests.support.tiny_models import tiny_model_config

KINDS = ("lse_nl", "mean", "global")  # the first is made of the formulas of two others
CONVNEXT = {"model_type": "convnext", "hidden_sizes": [8, 8, 12, 16], "depths": [1, 1, 1, 1]}
Export = Callable[[Format, str], tuple[Path, Path]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Return the folders of a model, named by its similarity or `convnext`, and of its export."""
    root = tmp_path_factory.mktemp("exported")

    @cache
    def published(name: str) -> Path:
        tree = tiny_model_config().model_dump()
        if name == "convnext":
            tree["image"] = {"kind": "backbone", "backbone": CONVNEXT, "input_px": 64}
        else:
            tree["similarity"]["kind"] = name
        tree = {"work": "unused", "model": tree, "images": {"size_px": 64}}
        return publish(root / name / "model", config=Config.model_validate(tree)).path

    @cache
    def make(to: Format, name: str) -> tuple[Path, Path]:
        return published(name), export_formats(published(name), to, root / name / to).path

    return make


def run_code(page: Path, **names: Any) -> dict[str, Any]:
    """Run the first code of a page as its reader would; a page of exports begins with it."""
    _, _, section = page.read_text(encoding="utf-8").rpartition("## Exports")
    code, *_ = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    with torch.no_grad():
        exec(code, names)
    return names


@pytest.mark.filterwarnings("default")  # of the libraries, not ours
@pytest.mark.parametrize(
    ("to", "name"),
    [*(("transformers", kind) for kind in KINDS), ("transformers", "convnext"), ("onnx", "lse_nl")],
)
def test_the_code_of_its_page_answers_as_the_model(exported, to, name, tmp_path):
    model, folder = exported(to, name)
    gray = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    gray[0, :2] = 0, 255  # black to white, in the model's size: nothing is to change it
    Image.fromarray(gray).save(tmp_path / "image.png")
    asked = {"folder": folder, "file": tmp_path / "image.png", "sentences": list(SENTENCES)}
    assert (folder / "README.md").read_text(encoding="utf-8").count("```python") == 1
    found = run_code(folder / "README.md", **asked)
    ours = load(model, "cpu")
    regions, texts = ours.embed_images(gray[None]), ours.embed_sentences(SENTENCES)
    scores = ours.model.score(regions, texts).T
    assert scores.std() > 20 * 1e-6
    for theirs, expected in (
        (found["regions"], regions.flatten(1, 2)),
        (found["texts"], texts),
        (found["scores"].T if to == "onnx" else found["scores"], scores),
        (found["logits"], ours.model.gamma.square() * scores),
    ):
        theirs = np.asarray(theirs).reshape(expected.shape)
        np.testing.assert_allclose(theirs, expected.numpy(), atol=1e-6, rtol=1e-5)


GREY = np.linspace(0, 255, 64 * 48).astype(np.uint8).reshape(48, 64)
COLOURS = Image.fromarray(np.stack([GREY, GREY[::-1], GREY[:, ::-1]], axis=2))
ALPHA = Image.fromarray(GREY[::-1])
WORDS = GREY.astype(np.uint16)
DICOM = dicom_bytes(WORDS * 16, photometric="MONOCHROME1", WindowCenter="2000", WindowWidth="500")
MODES: dict[str, Image.Image] = {
    "L": Image.fromarray(GREY),
    "1": Image.fromarray(GREY).convert("1"),
    "LA": Image.merge("LA", [Image.fromarray(GREY), ALPHA]),
    "P": COLOURS.quantize(64),
    "RGB": COLOURS,
    "RGBA": Image.merge("RGBA", [*COLOURS.split(), ALPHA]),
    "16 bits": Image.fromarray(WORDS * 257),
    "12 of 16 bits": Image.fromarray(WORDS * 16 + 1000),
    "constant": Image.fromarray(WORDS * 0 + 700),
    "window of a DICOM file": Image.fromarray(open_image(DICOM, ImagesConfig(voi="dicom")).pixels),
}


@pytest.mark.filterwarnings("default")  # of the libraries, not ours
@pytest.mark.parametrize("form", ["jpeg", "png"])
def test_greys_by_the_page_are_those_of_the_package(exported, form, tmp_path):
    """On https://github.com/python-pillow/Pillow/issues/3011, 2574 and 3041 16 bits turn white."""
    for to in ("transformers", "onnx"):
        assert _IMAGE in (exported(to, "lse_nl")[1] / "README.md").read_text(encoding="utf-8")
    file, of_png = tmp_path / f"image.{form}", {"I;16", "LA", "RGBA", "P", "1"}
    names = {"Image": Image, "ImageOps": ImageOps, "file": file}
    for name, image in MODES.items():
        if form == "png" or image.mode not in of_png:
            image.save(file)
            exec(_IMAGE, names)
            ours = open_image(file).pixels / 257
            assert np.abs(np.asarray(names["image"]).astype(int) - ours).max() <= 1, name


def test_the_tutorial_loads_plain_classes(exported, tmp_path, monkeypatch):
    _, folder = exported("transformers", "lse_nl")
    (tmp_path / "elsewhere").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    names = run_code(ROOT / "docs/python.md")
    assert names["image_tower"].config.model_type == "resnet"
    assert names["text_tower"].config.model_type == "bert"
    assert list(folder.rglob("*.py")) == []


def test_graphs_take_any_number_of_any_size(exported: Export) -> None:
    model, folder = exported("onnx", "lse_nl")
    image = InferenceSession(folder / "image.onnx")
    similarity = InferenceSession(folder / "similarity.onnx")
    ours = load(model, "cpu").model
    pixels = torch.randn(5, 1, 96, 160)
    (regions,) = image.run(None, {"pixels": pixels.numpy()})
    expected = ours.encode_images(pixels).detach()
    assert regions.shape == (5, 6, 10, 16)
    np.testing.assert_allclose(regions, expected.numpy(), atol=1e-5)
    texts = torch.nn.functional.normalize(torch.randn(11, 16), dim=-1)
    (scores,) = similarity.run(None, {"regions": regions, "sentences": texts.numpy()})
    np.testing.assert_allclose(scores, ours.score(expected, texts).numpy(), atol=1e-5)


def test_an_export_names_no_patient_and_no_folder(exported: Export) -> None:
    for to in ("transformers", "onnx"):
        _, folder = exported(to, "lse_nl")
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert len(files) > 6
        assert not {"subjects.json", "config.json"} & {path.name for path in folder.iterdir()}
        for path in files:
            assert str(ROOT).encode() not in path.read_bytes(), path
            assert path.stat().st_mode == (folder / "README.md").stat().st_mode, path


def test_what_differs_is_damaged_or_exists_is_refused(exported, tmp_path, capsys):
    model, _ = exported("transformers", "lse_nl")
    with pytest.raises(CheckpointError, match="differs from the model by"):
        export_formats(model, "transformers", tmp_path / "out", tolerance=-1.0)
    assert {path.name for path in tmp_path.iterdir()} == {".out.lock"}
    run = tmp_path / "run"
    shutil.copytree(model, run / "model")
    words = [str(run), "--to", "transformers", "--out"]
    assert main(["export", *words, str(tmp_path / "out")]) == 0
    assert "largest difference" in capsys.readouterr().out
    assert main(["export", *words, str(tmp_path / "out")]) == ConfigError.exit_code
    assert "exists; name a folder that does not" in capsys.readouterr().err
    weights = run / "model" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert main(["export", *words, str(tmp_path / "other")]) == ArtifactCorrupt.exit_code
    assert "model.safetensors" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
