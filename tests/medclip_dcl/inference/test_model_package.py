import json
from pathlib import Path

import torch

from medclip_dcl.core.artifact import make_fingerprint
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.files import write_text
from medclip_dcl.inference.model_package import (
    ARTIFACT,
    CONFIG,
    SUBJECTS,
    read_model_package,
    subject_hash,
    write_model_package,
)
from pipelines.config import Config

CONFIGURED = Config(work="/somewhere/of/dr-who", seed=5)
WEIGHTS = {"gamma": torch.tensor(1.0), "w": torch.arange(6.0).reshape(2, 3).T}


def publish(path: Path, config: Config = CONFIGURED, **weights: torch.Tensor) -> Path:
    with write_artifact(path, ARTIFACT, make_fingerprint(ARTIFACT, {}, {})) as writer:
        card = {"prompts": [], "limits": ["none"]}
        package = WEIGHTS | weights, config, card, {"p2", "p1"}
        write_model_package(
            writer.directory, *package, lambda text: write_text(text / "config.json", "{}")
        )
        writer.commit({})
    return path


def test_what_was_published_is_read_back_and_patients_by_hash_alone(tmp_path):
    path = publish(tmp_path / "model")
    model = read_model_package(path)
    assert model.config.seed == 5
    assert model.card["limits"] == ["none"]
    with model.text_folder() as folder:
        for file in (tmp_path / "model/text").iterdir():
            assert (folder / file.name).read_bytes() == file.read_bytes()
    assert not folder.exists()  # it has words of reports
    torch.testing.assert_close(model.weights(), WEIGHTS, atol=0, rtol=0)
    assert model.subject_hashes == {subject_hash("p1"), subject_hash("p2")}
    assert subject_hash("p3") not in model.subject_hashes
    assert "p1" not in json.loads((path / SUBJECTS).read_text())


def test_the_digest_names_content_alone(tmp_path):
    one = read_model_package(publish(tmp_path / "one"))
    moved = read_model_package(publish(tmp_path / "two", Config(work="elsewhere", seed=5)))
    other = read_model_package(publish(tmp_path / "three", gamma=torch.tensor(2.0)))
    assert one.digest == moved.digest != other.digest
    assert "dr-who" not in (one.path / CONFIG).read_text()
