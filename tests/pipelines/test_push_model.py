"""Only what may leave the institution reaches the hub, and what arrives is a model."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from huggingface_hub import close_session

from api.model_manager import fetch_model
from api.settings import ServeSettings
from medclip_dcl.core.artifact import HEADER, Artifact, open_artifact
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.errors import ArtifactStale, CheckpointError, ConfigError
from medclip_dcl.core.settings import WITHHELD
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.evaluation.questions import refuse_contaminated
from medclip_dcl.inference import model_package
from medclip_dcl.inference.heads import read_heads
from medclip_dcl.inference.model_package import read_model_package, subject_hash
from medclip_dcl.inference.predictor import load, published_folder
from medclip_dcl.training.config import TrainingConfig, read_training_config
from pipelines import pages
from pipelines.__main__ import main
from pipelines.config import Config
from pipelines.publish import export_model
from tests.support.canaries import found_in, spoil_settings
from tests.support.hub import COMMIT, TOKEN, Hub, running_hub
from tests.support.jobs import made, run_here, write_evaluated
from tests.support.published import add_heads, publish
from tests.support.tiny_models import tiny_model_config

pytestmark = pytest.mark.filterwarnings("default")  # the hub's client warns of itself

SENT = {
    *("README.md", "data_card.md", HEADER, "config.json", "model.json", "model.safetensors"),
    *("offsets.json", "subjects.json"),
    *("text/config.json", "text/tokenizer.json", "text/tokenizer_config.json"),
}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = write_evaluated(tmp_path_factory.mktemp("pushed") / "work", subjects=("patient-17",))
    words = {"intended_use": "Tests.", "limits": ["Tiny images."], "licence": "mit"}
    return run_here("write_cards", work, card=words)


def model_of(work: Path) -> Artifact:
    return made(work, model_package.ARTIFACT)


def public_copy(work: Path, model: Path, folder: Path, *, vocabulary: bool = True) -> Artifact:
    cards = pages.cards_of(work, model_of(work))
    return export_model(model, cards, folder, allow_vocabulary=vocabulary)


def reach(monkeypatch: pytest.MonkeyPatch, url: str, cache: Path) -> None:
    """Let huggingface_hub, which has read its variables already, take a hub for its own."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    address = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    constants = {"ENDPOINT": url, "HUGGINGFACE_CO_URL_TEMPLATE": address}
    constants |= {"HF_HUB_OFFLINE": False, "HF_HUB_CACHE": str(cache)}
    for name, value in {**constants, "HF_HUB_DISABLE_XET": True}.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with running_hub(Hub()) as hub:
        reach(monkeypatch, hub.url, tmp_path / "cache")
        yield hub


def push(work: Path, *options: str) -> int:
    words = ["--config", f"{work}.yaml", "--repo", "someone/images", "--allow-vocabulary"]
    return main(["push_model", *words, *options])


def test_what_arrives_is_the_model_without_patients_and_can_be_loaded(work, hub, tmp_path, capsys):
    assert push(work) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{hub.url}/someone/images/commit/1"
    assert hub.visibility == "private"
    assert set(hub.files) == SENT
    folder = tmp_path / "arrived"
    for name, data in hub.files.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(data)
        for secret in ("patient-17", subject_hash("patient-17"), str(work.parent)):
            assert secret.encode() not in data, name
    model = read_model_package(folder)
    assert model.subject_hashes is None
    own = model_of(work).path
    assert hub.files["model.safetensors"] == (own / "model.safetensors").read_bytes()
    assert load(folder, device="cpu").encode_text("no effusion").ndim == 1


def test_what_was_pushed_is_loaded_by_name_and_from_what_a_hub_makes_of_it(
    work, tmp_path, monkeypatch
):
    own = model_of(work).path
    copy = public_copy(work, own, tmp_path / "copy")
    with running_hub(Hub()) as hub:
        hub.files = {name: (copy.path / name).read_bytes() for name in (*copy.files, HEADER)}
        hub.files[".gitattributes"] = b"*.safetensors filter=lfs"
        reach(monkeypatch, hub.url, tmp_path / "cache")
        model = load(f"someone/images@{COMMIT}", device="cpu")
        assert model.digest == copy.digest
        settings = fetch_model(ServeSettings(model=f"someone/images@{COMMIT}"))
        assert read_model_package(Path(settings.model)).digest == copy.digest
        assert published_folder(Path(f"someone/images@{COMMIT}")) == Path(settings.model)
        with pytest.raises(ConfigError, match="names a branch"):
            load("someone/images@main", device="cpu")
        with pytest.raises(ConfigError, match="cannot be fetched"):
            load(f"someone/images@{COMMIT[::-1]}", device="cpu")
    # The hub is gone: what has been fetched is there, and nothing else.
    assert load(f"someone/images@{COMMIT}", device="cpu").digest == copy.digest
    with pytest.raises(ConfigError, match="cannot be fetched"):
        load(f"someone/others@{COMMIT}", device="cpu")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert load(f"someone/images@{COMMIT}", device="cpu").digest == copy.digest
    clone = shutil.copytree(copy.path, tmp_path / "clone")
    (clone / ".gitattributes").write_bytes(hub.files[".gitattributes"])
    for name in (".git/config", ".cache/huggingface/download/model.json.lock", "text/.DS_Store"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).touch()
    assert load(clone, device="cpu").digest == copy.digest


def test_heads_and_offsets_go_along_and_the_images_of_their_bank_stay(work, tmp_path):
    own = model_of(work).path
    model = open_artifact(Path(shutil.copytree(own, tmp_path / "model")), model_package.ARTIFACT)
    add_heads(model, load(model.path, device="cpu").config.model.similarity.dim)
    copy = public_copy(work, model.path, tmp_path / "copy")
    assert set(copy.files) == SENT - {HEADER} | {"heads.json", "heads.safetensors"}
    assert (model.path / model_package.BANK_FILE).is_file()
    assert model_package.BANK_FILE not in copy.files
    here, there = load(own, device="cpu"), load(copy.path, device="cpu")
    assert there.offsets_of(there.findings) == here.offsets_of(here.findings)
    own_heads, heads = read_heads(model.path), there.heads
    assert [head.card for head in heads] == [head.card for head in own_heads]
    assert [head.card.name for head in heads] == ["tuberculosis", "tube"]
    features = np.ones((1, len(heads[0].arrays["weight"])))
    assert heads[0].answer(features) == own_heads[0].answer(features)


def test_a_public_repository_is_written_to_only_when_it_is_meant(work, hub, capsys):
    hub.visibility = "public"
    assert push(work) == 2
    assert hub.files == {}
    assert "give --public" in capsys.readouterr().err
    assert push(work, "--public") == 0
    assert set(hub.files) == SENT


def test_a_dry_run_lists_the_files_and_sends_nothing(work, hub, capsys):
    assert push(work, "--dry-run") == 0
    *files, last = capsys.readouterr().out.splitlines()
    assert last == "nothing was sent"
    assert {line.split()[1] for line in files} == SENT
    assert hub.asked == []


def test_a_hub_that_refuses_or_is_away_is_named(work, tmp_path, monkeypatch, capsys):
    with running_hub(Hub()) as hub:
        reach(monkeypatch, hub.url, tmp_path / "cache")
        monkeypatch.setenv("HF_TOKEN", "hf_of_nobody")
        assert push(work) == 1
        assert "status 401" in capsys.readouterr().err
        assert hub.files == {}
    close_session()  # a connection that is open outlives its server
    assert push(work) == 1
    assert "cannot be reached" in capsys.readouterr().err
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert push(work) == 2
    assert "HF_HUB_OFFLINE" in capsys.readouterr().err


def test_a_vocabulary_and_a_file_that_is_not_a_model_s_stay_here(work, tmp_path):
    own = model_of(work)
    with pytest.raises(CheckpointError, match="--allow-vocabulary"):
        public_copy(work, own.path, tmp_path / "copy", vocabulary=False)
    model = tmp_path / "model"
    with write_artifact(model, model_package.ARTIFACT, own.fingerprint) as writer:
        shutil.copytree(own.path, writer.directory, dirs_exist_ok=True)
        (writer.directory / HEADER).unlink()
        (writer.directory / "sentences.csv").write_text("There is a left pleural effusion.")
        writer.commit({})
    with pytest.raises(CheckpointError, match="1 files that no model package has"):
        public_copy(work, model, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_the_copy_is_not_evaluated_unless_the_patients_are_known_to_be_new(work, tmp_path):
    copy = public_copy(work, model_of(work).path, tmp_path / "model").path
    source, images = made(work, manifest.ARTIFACT), PreparedImages(made(work, prepared.ARTIFACT))
    with pytest.raises(ArtifactStale, match=r"does not say whom .* evaluate\.allow_contaminated"):
        refuse_contaminated(copy, source, [], images, allowed=False)
    counts = refuse_contaminated(copy, source, [], images, allowed=True)
    assert counts == {"contaminated": None, "repeated_images": None}  # nobody knows


def test_no_setting_that_names_a_place_or_a_host_is_published(work, tmp_path):
    model = {"model": tiny_model_config(), "images": ImagesConfig(size_px=64)}
    config = cast("Config", spoil_settings(Config(work="unused", **model)))
    own = publish(tmp_path / "model", config=config)
    assert found_in(own.file("config.json").read_bytes())
    copy = public_copy(work, own.path, tmp_path / "copy")
    found = [name for name in (*copy.files, HEADER) if found_in((copy.path / name).read_bytes())]
    assert found == []
    published = read_training_config(copy.path)
    assert set(json.loads(copy.file("config.json").read_text())) == set(TrainingConfig.model_fields)
    assert published.language_model.pretrained == WITHHELD
    assert load(copy.path, device="cpu") is not None
