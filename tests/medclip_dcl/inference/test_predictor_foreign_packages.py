"""A package of anybody's runs no code, asks nobody, and takes no more memory than its weights."""

import builtins
import json
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import huggingface_hub
import pytest
from huggingface_hub.errors import OfflineModeIsEnabled
from transformers import RobertaConfig

from medclip_dcl.artifact import make_fingerprint, open_artifact
from medclip_dcl.artifact_writer import write_artifact
from medclip_dcl.errors import ArtifactCorrupt, CheckpointError
from medclip_dcl.inference.predictor import load
from medclip_dcl.model_package import ARTIFACT, CARD, CONFIG, SUBJECTS
from medclip_dcl.models.architectures import hub_closed
from medclip_dcl.models.encoder_files import read_tokenizer
from medclip_dcl.models.text_encoder import read_bert_config
from testing.published import publish

TEXT = "text/config.json"
VIT = {
    "model_type": "dinov2",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "patch_size": 8,
}
Tree = dict[str, Any]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish(tmp_path_factory.mktemp("published") / "model").path


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> NoReturn:
        raise AssertionError("somebody was asked")

    for owner, name in ((socket.socket, "connect"), (socket, "getaddrinfo"), (builtins, "input")):
        monkeypatch.setattr(owner, name, refuses)


def foreign(package: Path, folder: Path, name: str, change: Callable[[Any], Any]) -> Path:
    """Give a copy of a package, whole by its digests, with another file of JSON."""
    own = open_artifact(package, ARTIFACT)
    with write_artifact(folder, ARTIFACT, make_fingerprint(ARTIFACT, {}, {})) as writer:
        (writer.directory / "text").mkdir()
        for file in own.files:
            shutil.copy(own.file(file), writer.directory / file)
        path = writer.directory / name
        path.write_text(json.dumps(change(json.loads(path.read_text()))))
        (writer.directory / "text/modeling.py").write_text("raise SystemExit('code ran')")
        writer.commit({})
    return folder


def image(tree: Tree, image: Tree) -> Tree:
    return {**tree, "model": {**tree["model"], "image": {**image, "input_px": 64}}}


@pytest.mark.parametrize(
    "text",
    [
        {"model_type": "align_text_model", "auto_map": {"AutoModel": "modeling.Evil"}},
        {"model_type": "roberta", "auto_map": {"AutoModel": "evil/repo--modeling.Evil"}},
        {"model_type": "roberta", "_attn_implementation": "evil/kernel"},
        {"model_type": "roberta", "num_hidden_layers": 10**7},
        {"model_type": "bert", "num_hidden_layers": 10**7},
        {"model_type": "bert", "vocab_size": 2**20, "hidden_size": 2**14},
    ],
)
def test_a_text_encoder_that_is_not_known_is_refused(
    package: Path, tmp_path: Path, text: Tree
) -> None:
    path = foreign(package, tmp_path / "model", TEXT, lambda tree: {**tree, **text})
    begun = time.monotonic()
    with pytest.raises(CheckpointError):
        load(path, "cpu")
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    "backbone",
    [
        {"model_type": "detr", "use_pretrained_backbone": True, "backbone": "evil/repo"},
        {**VIT, "use_pretrained_backbone": True, "backbone": "evil/repo"},
        {**VIT, "attn_implementation": "evil/kernel"},
        {**VIT, "auto_map": {"AutoModel": "modeling.Evil"}, "name_or_path": "text"},
        {**VIT, "num_hidden_layers": 10**7},
        {**VIT, "hidden_size": 2**20},
    ],
)
@pytest.mark.parametrize("kind", ["vit", "backbone"])
def test_an_image_encoder_that_is_not_known_is_refused(
    package: Path, tmp_path: Path, backbone: Tree, kind: str
) -> None:
    settings = {"kind": kind, "backbone": backbone}
    path = foreign(package, tmp_path / "model", CONFIG, lambda tree: image(tree, settings))
    with pytest.raises(CheckpointError):
        load(path, "cpu")


def test_a_deep_file_is_refused(package: Path, tmp_path: Path) -> None:
    path = foreign(package, tmp_path / "model", CONFIG, dict)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError):
        read_bert_config(tmp_path)
    (path / "artifact.json").write_text("[" * 100_000)
    with pytest.raises(ArtifactCorrupt, match="header"):
        load(path, "cpu")


@pytest.mark.parametrize(
    ("name", "tree"),
    [(CARD, []), (CARD, {"preprocessing": []}), (CARD, {}), (SUBJECTS, {}), (SUBJECTS, [[]])],
)
def test_a_card_that_is_none_is_refused(
    package: Path, tmp_path: Path, name: str, tree: object
) -> None:
    path = foreign(package, tmp_path / "model", name, lambda _: tree)
    with pytest.raises(CheckpointError):
        load(path, "cpu")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ["[" * 100_000, "[]"])
def test_a_tokenizer_that_is_none_is_refused(
    package: Path, tmp_path: Path, name: str, text: str
) -> None:
    shutil.copytree(package / "text", tmp_path / "text")
    (tmp_path / "text" / name).write_text(text)
    bert = read_bert_config(tmp_path / "text")
    for config in (bert, RobertaConfig(vocab_size=bert.vocab_size)):
        with pytest.raises(CheckpointError, match="tokenizer"):
            read_tokenizer(tmp_path / "text", config)


def test_code_next_to_weights_is_left_alone(package: Path, tmp_path: Path) -> None:
    more = {"auto_map": {"AutoModel": "modeling.Evil"}, "_attn_implementation": "evil/kernel"}
    path = foreign(package, tmp_path / "model", TEXT, lambda tree: {**tree, **more})
    assert load(path, "cpu").model.text.backbone.config.model_type == "bert"


def test_the_hub_is_closed_while_a_package_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with hub_closed(), pytest.raises(OfflineModeIsEnabled):
        huggingface_hub.get_session().get("https://huggingface.co/api/models/evil/repo")
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
