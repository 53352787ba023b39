"""Plugins: the page's own code, put where a user would, does what the page says."""

import hashlib
import math
import re
import shutil
import sys
import time
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

from api.app import create_app
from api.settings import ServeSettings
from medclip_dcl.core import plugins
from medclip_dcl.core.artifact import json_digest, open_artifact
from medclip_dcl.core.artifact_writer import changed_modules, code_digests
from medclip_dcl.core.errors import CheckpointError, ConfigError
from medclip_dcl.core.plugins import IMAGE_ENCODERS, LOSSES, METRICS, ROUTES, SOURCES
from medclip_dcl.core.tables import read_table
from medclip_dcl.data import manifest
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.classification import mean_finding_figures
from medclip_dcl.evaluation.metrics import BootstrapOptions
from medclip_dcl.inference.model_package import CONFIG, read_model_package
from medclip_dcl.models.dual_encoder import build_dual_encoder
from medclip_dcl.models.settings import ModelConfig
from medclip_dcl.training.objective import ObjectiveInputs, direction_loss
from pipelines.config import load_config
from pipelines.job import main_of
from tests.support.headers import change_header
from tests.support.service import PATIENCE_S
from tests.support.tiny_models import tiny_text_config

build_manifest = main_of("build_manifest")

PAGE = Path(__file__).parents[3] / "docs/extending.md"


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    for registry in (LOSSES, SOURCES, IMAGE_ENCODERS, METRICS, ROUTES):
        registry._items.clear()
    for name in plugins._FILES:
        sys.modules.pop(name, None)
    plugins._FILES.clear()


def of_page(name: str, folder: Path) -> Path:
    """Write plugin and config of a section of the page into a folder, and return the config."""
    text = re.split(r"^## An? ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (text,) = (part for part in text if part.startswith(f"{name}\n"))
    code, settings = (text.split(f"```{kind}\n")[1].split("```")[0] for kind in ("python", "yaml"))
    (file,) = settings.split("plugins: [")[1].split("]")[0].split(", ")
    (folder / file).write_text(code)
    config = folder / "ours.yaml"
    config.write_text(f"work: {folder / 'work'}\n{settings}")
    return config


def test_a_loss_is_what_the_objective_computes(tmp_path: Path) -> None:
    settings = load_config(of_page("loss", tmp_path)).objective
    assert settings.kind == "smoothed"
    scores = torch.tensor([[2.0, 0.0], [1.0, 3.0]], requires_grad=True)
    inputs = ObjectiveInputs(scores, torch.arange(2), torch.zeros(2), torch.tensor(1.0))
    output = direction_loss(settings, inputs)
    # Both anchors score their own 2 above the other: -.95 log p(own) - .05 log p(other).
    own = 1 / (1 + math.exp(-2))
    expected = -0.95 * math.log(own) - 0.05 * math.log(1 - own)
    assert output.loss.item() == pytest.approx(expected, rel=1e-5)
    output.loss.backward()
    assert scores.grad is not None


def test_a_source_becomes_a_manifest(tmp_path: Path) -> None:
    config, root = of_page("source", tmp_path), tmp_path / "studies"
    for number in range(3):
        study = root / f"p{number}/s{number}"
        study.parent.mkdir(parents=True)
        Image.new("L", (64, 64)).save(study.with_suffix(".png"))
        study.with_suffix(".txt").write_text(f"Finding {number} is seen.")
    words = ["--config", str(config), "--set", f"source.root={root}"]
    assert build_manifest(words) == 0
    made = open_artifact(tmp_path / "work/manifest", manifest.ARTIFACT)
    paths = read_table(made.path, manifest.IMAGES)["path"].to_pylist()
    assert paths == ["p0/s0.png", "p1/s1.png", "p2/s2.png"]
    assert "Finding 2 is seen." in read_table(made.path, manifest.REPORTS)["findings"].to_pylist()
    (root / "p0/s0.txt").write_text("Another report, of another length.")
    assert build_manifest(words) == 0  # a changed report makes another manifest
    assert open_artifact(made.path, manifest.ARTIFACT).digest != made.digest


def test_an_encoder_is_built_by_its_settings(tmp_path: Path) -> None:
    settings = load_config(of_page("image encoder", tmp_path)).model
    model = build_dual_encoder(settings, tiny_text_config(), seed=0)
    assert (model.image.width, model.image.grid(160)) == (96, 10)
    same = build_dual_encoder(settings, tiny_text_config(), seed=0)
    pixels = torch.rand(2, 1, 160, 160)
    regions = model.encode_images(pixels)
    assert regions.shape[:3] == (2, 10, 10)
    assert torch.equal(regions, same.encode_images(pixels))


def test_a_model_names_no_code_and_is_refused_without_its_encoder(tmp_path, published) -> None:
    model = shutil.copytree(published / "model", tmp_path / "model")
    text = (model / CONFIG).read_text()
    assert '"plugins"' not in text
    with pytest.raises(ValueError, match=r"there is no image encoder 'os'.*`plugins`"):
        ModelConfig.model_validate({"image": {"kind": "os"}})
    config = text.replace('"kind": "resnet"', '"kind": "plain"').encode()
    (model / CONFIG).write_bytes(config)

    def change(tree: dict[str, Any]) -> None:
        digest = hashlib.sha256(config).hexdigest()
        tree["files"][CONFIG] = {"bytes": len(config), "sha256": digest}
        tree["digest"] = json_digest(tree["files"])

    change_header(model, change)
    with pytest.raises(CheckpointError, match="needs the image encoder of a plugin"):
        read_model_package(model)


def test_a_metric_is_measured_and_a_headline_and_its_file_is_named_once_changed(tmp_path):
    load_config(of_page("metric", tmp_path))
    margins = np.array([[0.4, 0.2, -0.1, -0.3]])
    truth = np.array([[1, 1, 0, 0]], dtype=np.int8)
    figures = mean_finding_figures(margins, truth, list("abcd"), BootstrapOptions(0, 0))
    assert figures["mean_margin_gap"].value == pytest.approx(0.5)  # .3 with it, -.2 without
    question = {"absent": "", "figures": {}, "groups": {}, "chance": {}}
    tree = {"metrics": {"margin_gap": "margin gap, mean"}, "questions": {"zero_shot": question}}
    assert results.headlines_of(tree)[-1].name == "zero_shot.mean_margin_gap"
    made = code_digests()
    assert "plugin gap" in made
    assert changed_modules(made) == []
    assert changed_modules(made | {"plugin gap": "of another day"}) == ["plugin gap"]
    assert changed_modules({"plugin of_another_run": "0"}) == []


def test_a_route_is_answered_with_keys_and_limits(tmp_path: Path, published: Path) -> None:
    of_page("route", tmp_path)
    key = tmp_path / "keys"
    key.write_text("k" * 40)
    key.chmod(0o600)
    settings = ServeSettings(
        model=str(published / "model"),
        engine="torch",  # an export takes seconds
        key_file=str(key),
        plugins=(str(tmp_path / "findings.py"),),
    )
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        assert client.get("/findings").status_code == 401
        client.headers["Authorization"] = f"Bearer {'k' * 40}"
        end = time.monotonic() + PATIENCE_S
        while client.get("/ready").status_code != 200 and time.monotonic() < end:
            time.sleep(0.02)
        assert client.get("/v1/findings").json() == ["effusion", "pneumonia"]


def test_names_are_refused_with_the_one_that_was_meant(tmp_path: Path) -> None:
    config = of_page("loss", tmp_path)
    (tmp_path / "again.py").write_text((tmp_path / "smoothed.py").read_text())
    (tmp_path / "json.py").touch()
    for setting, words in (
        ("objective.kind=smooth", "there is no loss 'smooth'; give smoothed"),
        (f'plugins=["{tmp_path}/again.py"]', "there is a loss 'smoothed' already"),
        ('plugins=["nowhere.py"]', r"nowhere\.py, which is not a file"),
        ('plugins=["no_such_module"]', "there is no module no_such_module"),
        (f'plugins=["{tmp_path}/json.py"]', "a module json is in use"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_config(config, [setting])


def test_an_installed_package_is_asked_by_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    points = Mock(return_value=[EntryPoint("summed", "math:fsum", "medclip_dcl.losses")])
    monkeypatch.setattr(plugins, "entry_points", points)
    assert LOSSES.check("summed") == "summed"
    assert LOSSES["summed"] is math.fsum
    assert LOSSES.check("infonce") == "infonce"  # what is built in asks nobody
    points.assert_called_once_with(group="medclip_dcl.losses", name="summed")
