"""A package of anybody's runs no code, asks nobody, and takes no more memory than its weights."""

import base64
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
import torch
import transformers as hf
from huggingface_hub.errors import OfflineModeIsEnabled

from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.core.errors import ArtifactCorrupt, CheckpointError
from medclip_dcl.inference import predictor
from medclip_dcl.inference.model_package import ARTIFACT, CARD, CONFIG, SUBJECTS, rewrite_package
from medclip_dcl.inference.predictor import load
from medclip_dcl.models.architectures import check_tokenizer, hub_closed
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.models.public.encoders import read_tokenizer
from medclip_dcl.models.settings import ModelConfig
from medclip_dcl.models.text_encoder import read_bert_config
from tests.support.published import publish

TEXT = "text/config.json"
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
VIT = {**SIZES, "model_type": "dinov2", "patch_size": 8}
Tree = dict[str, Any]
Foreign = Callable[[str, Callable[[Any], Any]], Path]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish(tmp_path_factory.mktemp("published") / "model").path


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> NoReturn:
        raise AssertionError("somebody was asked")

    for owner, name in ((socket.socket, "connect"), (socket, "getaddrinfo"), (builtins, "input")):
        monkeypatch.setattr(owner, name, refuses)


@pytest.fixture
def foreign(package: Path, tmp_path: Path) -> Foreign:
    """Return a function that copies the package, whole by its digests, with a changed JSON file."""

    def copy(name: str, change: Callable[[Any], Any]) -> Path:
        own = open_artifact(package, ARTIFACT)
        tree = change(json.loads(own.file(name).read_text()))

        def write(folder: Path) -> None:
            (folder / name).write_text(json.dumps(tree))
            (folder / "text/modeling.py").write_text("raise SystemExit('code ran')")

        return rewrite_package(own, tmp_path / "model", (name, "text/modeling.py"), write).path

    return copy


@pytest.fixture
def text(package: Path, tmp_path: Path) -> Path:
    """A copy of the package's text encoder without its weights."""
    return shutil.copytree(package / "text", tmp_path / "text")


def refused(folder: Path, reason: str) -> None:
    """Expect the tokenizer of a folder to be refused, whatever encoder it is read for."""
    bert = read_bert_config(folder)
    for config in (bert, hf.RobertaConfig(vocab_size=bert.vocab_size)):
        with pytest.raises(CheckpointError, match=reason):
            read_tokenizer(folder, config)


def with_image(tree: Tree, **image: Any) -> Tree:
    return {**tree, "model": {**tree["model"], "image": {"input_px": 64, **image}}}


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "align_text_model", "auto_map": {"AutoModel": "modeling.Evil"}},
        {"model_type": "roberta", "auto_map": {"AutoModel": "evil/repo--modeling.Evil"}},
        {"model_type": "roberta", "_attn_implementation": "evil/kernel"},
        {"model_type": "roberta", "num_hidden_layers": 10**7},
        {"model_type": "bert", "num_hidden_layers": 10**7},
        {"model_type": "bert", "vocab_size": 2**20, "hidden_size": 2**14},
    ],
)
def test_a_text_encoder_that_is_not_known_is_refused(foreign, changes):
    path = foreign(TEXT, lambda tree: {**tree, **changes})
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
def test_an_image_encoder_that_is_not_known_is_refused(foreign, backbone, kind):
    path = foreign(CONFIG, lambda tree: with_image(tree, kind=kind, backbone=backbone))
    with pytest.raises(CheckpointError):
        load(path, "cpu")


def test_a_deep_file_is_refused(foreign: Foreign, tmp_path: Path) -> None:
    path = foreign(CONFIG, dict)
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
def test_a_card_that_is_none_is_refused(foreign, name, tree):
    path = foreign(name, lambda _: tree)
    with pytest.raises(CheckpointError):
        load(path, "cpu")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["[" * 100_000, "[]"])
def test_a_tokenizer_that_is_none_is_refused(text, name, content):
    (text / name).write_text(content)
    refused(text, "tokenizer")


def test_an_input_that_takes_gigabytes_is_refused_before_anything_is_built(foreign, monkeypatch):
    monkeypatch.setattr(predictor, "_check_preprocessing", lambda _: None)
    monkeypatch.setattr(predictor, "build_dual_encoder", lambda *_args, **_more: 1 / 0)
    path = foreign(
        CONFIG, lambda tree: with_image(tree, **{**tree["model"]["image"], "input_px": 4096})
    )
    with pytest.raises(CheckpointError, match=r"input_px 4096 makes .* regions"):
        load(path, "cpu")


def test_buffers_that_no_weight_bounds_are_refused() -> None:
    with torch.device("meta"):
        encoder = DualEncoder(ModelConfig(), hf.BertConfig(**SIZES, vocab_size=9))
        encoder.register_buffer("table", torch.zeros(2**25), persistent=False)
    with pytest.raises(CheckpointError, match=r"hold 134,.* bytes besides their 1,000 of weights"):
        predictor._check_memory(encoder, 64, 1000)


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
SEQUENCE = {"type": "Sequence", "normalizers": [REPLACE]}
REGEX = {"type": "Replace", "pattern": {"Regex": "(a|aa)+$"}, "content": ""}
TABLE = base64.b64encode((4).to_bytes(4, "little") + bytes(4) + b"x" * 65).decode()
TEMPLATE = {"type": "TemplateProcessing", "single": [], "pair": []}
LONG = {"[CLS]": {"ids": [2] * 10**5}}


@pytest.mark.parametrize(
    ("part", "step", "reason"),
    [
        ("normalizer", REPLACE, "puts 2 characters where fewer were"),
        ("normalizer", {**SEQUENCE, "normalizers": [{"type": "NFC"}] * 17}, "17 steps, above 16"),
        ("normalizer", {**SEQUENCE, "normalizers": [SEQUENCE]}, "puts 2 characters"),
        ("normalizer", {"type": "Prepend", "prepend": "aaaaa"}, "puts in 5 characters, above 4"),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": TABLE}, "to 65 bytes"),
        ("normalizer", {"type": "Unheard"}, "a step of type Unheard"),
        ("normalizer", REGEX, "not one of releases"),
        ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}}, "one of releases"),
        ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "a*a*a*a*b"}}, "one of releases"),
        ("pre_tokenizer", {"type": "Split", "pattern": {"String": ""}}, "searches for nothing"),
        ("model", {"type": "WordPiece", "max_input_chars_per_word": 10**9}, "up to 1000000000"),
        ("model", {"type": "WordPiece", "continuing_subword_prefix": "#" * 99}, "puts in 99"),
        ("post_processor", {**TEMPLATE, "special_tokens": LONG}, "100000 pieces, above 16"),
    ],
)
def test_a_tokenizer_that_could_hold_or_end_the_process_is_refused(text, part, step, reason):
    tree = json.loads((text / "tokenizer.json").read_text())
    changed = {**tree, part: {**(tree[part] or {}), **step}}
    (text / "tokenizer.json").write_text(json.dumps(changed))
    refused(text, reason)


@pytest.mark.parametrize(
    "name", ["CLIP", "Bert", "Roberta", "XLMRoberta", "Camembert", "Deberta", "DebertaV2", "MPNet"]
)
def test_tokenizers_of_releases_pass(name: str, tmp_path: Path) -> None:
    getattr(hf, f"{name}Tokenizer")().save_pretrained(str(tmp_path))
    check_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("pattern", [r"[!\"#\.\]\-]", r"\s+", " {2,}", r"\s{2,}|[\n\r\t]"])
def test_classes_of_characters_pass(text: Path, pattern: str) -> None:
    tree = json.loads((text / "tokenizer.json").read_text())
    step = {"type": "Replace", "pattern": {"Regex": pattern}, "content": " "}
    (text / "tokenizer.json").write_text(json.dumps({**tree, "normalizer": step}))
    check_tokenizer(text / "tokenizer.json")


def test_code_next_to_weights_is_left_alone_and_the_hub_is_closed_meanwhile(foreign, monkeypatch):
    more = {"auto_map": {"AutoModel": "modeling.Evil"}, "_attn_implementation": "evil/kernel"}
    path = foreign(TEXT, lambda tree: {**tree, **more})
    assert load(path, "cpu").model.text.backbone.config.model_type == "bert"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with hub_closed(), pytest.raises(OfflineModeIsEnabled):
        huggingface_hub.get_session().get("https://huggingface.co/api/models/evil/repo")
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
