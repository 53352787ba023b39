"""Checkpoints are read without their code, without prompts, and whole."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertForMaskedLM

from medclip_dcl.errors import CheckpointError
from medclip_dcl.likelihood.language_model import (
    HEAD_KEYS,
    checkpoint_digests,
    load_language_model,
    save_language_model,
)
from tests.synthetic.bert import SENTENCES, tiny_bert, tiny_tokenizer, write_cxr_bert

IDS = torch.tensor([[2, 8, 13, 4, 5, 3]])


@pytest.mark.parametrize("pickled", [False, True])
def test_cxr_bert_layout_loads_without_its_head_and_with_equal_logits(tmp_path, pickled):
    model = tiny_bert()
    write_cxr_bert(tmp_path / "cxr", model, pickled=pickled)
    loaded = load_language_model(tmp_path / "cxr")
    assert set(loaded.ignored) == set(HEAD_KEYS)
    assert not loaded.model.training
    with torch.no_grad():
        assert torch.equal(loaded.model(IDS).logits, model(IDS).logits)
    assert (
        loaded.tokenizer(list(SENTENCES))["input_ids"]
        == tiny_tokenizer()(list(SENTENCES))["input_ids"]
    )


def test_cxr_bert_layout_loads_with_stdin_closed_and_asks_nothing(tmp_path):
    write_cxr_bert(tmp_path / "cxr", tiny_bert())
    code = (
        "import sys; from pathlib import Path\n"
        "from medclip_dcl.likelihood.language_model import load_language_model\n"
        "print(len(load_language_model(Path(sys.argv[1])).ignored))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path / "cxr")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "6\n"), done.stderr
    assert "remote code" not in done.stderr


def test_config_without_model_type_loads(tmp_path):
    write_cxr_bert(tmp_path / "cxr", tiny_bert())
    path = tmp_path / "cxr" / "config.json"
    tree = json.loads(path.read_text())
    del tree["model_type"]
    path.write_text(json.dumps(tree))
    assert load_language_model(tmp_path / "cxr").model.config.hidden_size == 32


def test_saved_model_is_read_back_by_us_and_by_transformers(tmp_path):
    model, tokenizer = tiny_bert(), tiny_tokenizer()
    save_language_model(model, tokenizer, tmp_path)
    ours = load_language_model(tmp_path)
    theirs = BertForMaskedLM.from_pretrained(tmp_path).eval()
    assert ours.ignored == ()
    with torch.no_grad():
        assert torch.equal(ours.model(IDS).logits, model(IDS).logits)
        assert torch.equal(theirs(IDS).logits, model(IDS).logits)
    again = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)
    assert again(SENTENCES[2])["input_ids"] == tokenizer(SENTENCES[2])["input_ids"]


def test_saving_twice_gives_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        save_language_model(tiny_bert(), tiny_tokenizer(), tmp_path / name)
    assert checkpoint_digests(tmp_path / "one") == checkpoint_digests(tmp_path / "two")


def edit_weights(folder: Path, change) -> None:
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("cls.predictions.bias"), "lacks"),
        (lambda state: state.update({"bert.surprise": torch.zeros(2)}), "unknown"),
        (
            lambda state: state.update({"bert.embeddings.LayerNorm.bias": torch.zeros(3)}),
            "other shapes",
        ),
        (
            lambda state: state.update({"cls.predictions.decoder.weight": torch.zeros(34, 32)}),
            "ties them",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, change, message):
    write_cxr_bert(tmp_path / "cxr", tiny_bert())
    edit_weights(tmp_path / "cxr", change)
    with pytest.raises(CheckpointError, match=message):
        load_language_model(tmp_path / "cxr")


class Trap:
    """Touches a file when it is unpickled by a loader that runs code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_a_pickle_that_holds_code_is_refused_and_not_run(tmp_path):
    write_cxr_bert(tmp_path / "cxr", tiny_bert(), pickled=True)
    torch.save({"bert": Trap(tmp_path / "ran")}, tmp_path / "cxr" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="plain tensors"):
        load_language_model(tmp_path / "cxr")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.txt"])
def test_a_missing_file_is_named(tmp_path, name):
    write_cxr_bert(tmp_path / "cxr", tiny_bert())
    (tmp_path / "cxr" / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        load_language_model(tmp_path / "cxr")


def test_damaged_weights_and_config_are_refused(tmp_path):
    write_cxr_bert(tmp_path / "cxr", tiny_bert())
    (tmp_path / "cxr" / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(CheckpointError):
        load_language_model(tmp_path / "cxr")
    (tmp_path / "cxr" / "config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="config"):
        load_language_model(tmp_path / "cxr")
