"""Checkpoints are read without their code, without prompts, and whole."""

import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertForMaskedLM

from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.likelihood.masked_lm import (
    checkpoint_digests,
    load_language_model,
    save_language_model,
)
from tests.support.bert import LAYOUTS, SENTENCES, tiny_bert, tiny_tokenizer, write_cxr_bert

IDS = torch.tensor([[2, 8, 13, 4, 5, 3]])


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("pickled", [False, True])
def test_releases_load_without_their_head_and_code_and_with_equal_logits(
    tmp_path, monkeypatch, capfd, pickled, layout
):
    """Their code would end this process; whoever asks whether to run it reads from stdin."""
    monkeypatch.setattr(sys, "stdin", None)
    model = tiny_bert()
    write_cxr_bert(tmp_path / "cxr", model, pickled=pickled, layout=layout)
    loaded = load_language_model(tmp_path / "cxr")
    assert "remote code" not in capfd.readouterr().err
    assert len(loaded.ignored) == (0 if layout == "general" else 6)
    assert all(name.startswith("cls_projection_head.") for name in loaded.ignored)
    assert not loaded.model.training
    assert loaded.model.config.hidden_dropout_prob == 0.25
    with torch.no_grad():
        assert torch.equal(loaded.model(IDS).logits, model(IDS).logits)
    texts = list(SENTENCES)
    assert loaded.tokenizer(texts)["input_ids"] == tiny_tokenizer()(texts)["input_ids"]


def test_a_saved_model_is_read_back_by_us_and_by_transformers_and_saved_alike_each_time(tmp_path):
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
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        save_language_model(tiny_bert(), tiny_tokenizer(), tmp_path / name)
    assert checkpoint_digests(tmp_path / "one") == checkpoint_digests(tmp_path / "two")


@pytest.mark.parametrize(
    ("name", "weight", "message"),
    [
        ("cls.predictions.bias", None, "lacks"),
        ("bert.surprise", torch.zeros(2), "unknown"),
        ("bert.embeddings.LayerNorm.bias", torch.zeros(3), "other shapes"),
        ("cls.predictions.decoder.weight", torch.zeros(34, 32), "ties them"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, name, weight, message):
    write_cxr_bert(tmp_path / "cxr", tiny_bert())
    file = tmp_path / "cxr/model.safetensors"
    state = load_file(file)
    state.pop(name, None)
    save_file(state | ({} if weight is None else {name: weight}), file)
    with pytest.raises(CheckpointError, match=message):
        load_language_model(tmp_path / "cxr")


def test_damaged_weights_and_config_are_refused(tmp_path):
    write_cxr_bert(tmp_path / "cxr", tiny_bert())
    (tmp_path / "cxr" / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(CheckpointError):
        load_language_model(tmp_path / "cxr")
    (tmp_path / "cxr" / "config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="config"):
        load_language_model(tmp_path / "cxr")
