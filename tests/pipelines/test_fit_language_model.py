"""fit_language_model: a small BERT, a fine-tuned one, or the given one as it is."""

from pathlib import Path

import pytest
import torch
import yaml

from medclip_dcl.core.artifact import Artifact, open_artifact
from medclip_dcl.likelihood import masked_lm
from medclip_dcl.likelihood.masked_lm import load_language_model
from pipelines.__main__ import main
from tests.support.bert import tiny_bert, write_cxr_bert
from tests.support.corpus import write_reports

SMALL = {"vocabulary": 150, "hidden_size": 16, "layers": 1, "steps": 8, "batch": 8, "threads": 1}

FILES = {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
"""The card, and what transformers' own classes read offline."""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    return write_config(tmp_path, "work")


def write_config(folder: Path, work: str) -> Path:
    path = folder / f"{work}.yaml"
    path.write_text(f"work: {folder / work}\n", encoding="utf-8")
    write_reports(folder / work)
    assert main(["split_sentences", "--config", str(path)]) == 0
    return path


def arguments(config_file: Path, **settings) -> list[str]:
    chosen = {**SMALL, **settings}
    sets = [f"language_model.{name}={value}" for name, value in chosen.items()]
    return ["--config", str(config_file), *(part for item in sets for part in ("--set", item))]


def run(config_file: Path, **settings) -> Artifact:
    assert main(["fit_language_model", *arguments(config_file, **settings)]) == 0
    return open_artifact(config_file.with_suffix("") / "language_model", masked_lm.ARTIFACT)


def test_a_fitted_model_is_whole_and_measured(config_file):
    artifact = run(config_file)
    assert set(artifact.files) == FILES
    assert artifact.summary["fitted"] is True
    assert 0 <= artifact.summary["held_out_accuracy"] <= 1
    assert artifact.summary["held_out_sentences"] > 0
    card = artifact.file(masked_lm.CARD).read_text()
    assert yaml.safe_load(card.split("---")[1])["license"] == "other"
    assert f"{artifact.summary['held_out_accuracy']:.1%} of the" in card
    assert "Not a medical device" in card
    assert artifact.fingerprint["inputs"]["sentences"] in card
    assert "effusion" not in card
    loaded = load_language_model(artifact.path)
    assert loaded.model.config.hidden_size == 16
    assert len(loaded.tokenizer) == artifact.summary["vocabulary"] <= 150
    assert masked_lm.tokenizer_digest(artifact) == artifact.files["tokenizer.json"]["sha256"]


def test_given_model_is_copied_without_its_head_where_nothing_is_fitted(config_file, tmp_path):
    model = tiny_bert()
    write_cxr_bert(tmp_path / "cxr", model, pickled=True)
    artifact = run(config_file, steps=0, pretrained=tmp_path / "cxr")
    assert artifact.summary["fitted"] is False
    assert artifact.summary["ignored_keys"] == 6
    assert "model.safetensors" in artifact.files
    ids = torch.tensor([[2, 8, 13, 3]])
    with torch.no_grad():
        copied = load_language_model(artifact.path).model(ids).logits
        assert torch.equal(copied, model(ids).logits)


def test_given_model_is_fine_tuned_and_a_changed_one_is_seen(config_file, tmp_path):
    write_cxr_bert(tmp_path / "cxr", tiny_bert())
    artifact = run(config_file, pretrained=tmp_path / "cxr")
    assert 0 <= artifact.summary["held_out_accuracy_before"] <= 1
    assert "random weights" not in artifact.file(masked_lm.CARD).read_text()
    tuned = load_language_model(artifact.path).model
    changed = [
        not torch.equal(a, b)
        for a, b in zip(tuned.parameters(), tiny_bert().parameters(), strict=True)
    ]
    assert all(changed)
    write_cxr_bert(tmp_path / "other", tiny_bert(scale=2.0))
    assert run(config_file, pretrained=tmp_path / "other").digest != artifact.digest
