"""Checkpoints are read without their code and whole; engines give the whole model's answers."""

import logging
import sys
from itertools import product
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertForMaskedLM

from medclip_dcl.core.errors import CheckpointError, ScoreError
from medclip_dcl.likelihood import masked_lm, pll
from medclip_dcl.likelihood.masked_lm import load_language_model, prepare_engine
from tests.support import bert
from tests.support.bert import SENTENCES, copies, tiny_bert, tiny_tokenizer, write_cxr_bert

IDS = torch.tensor([[2, 8, 13, 4, 5, 3]])


@pytest.mark.parametrize("layout", sorted(bert.LAYOUTS))
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
    masked_lm.save_language_model(model, tokenizer, tmp_path)
    ours = load_language_model(tmp_path)
    theirs = BertForMaskedLM.from_pretrained(tmp_path).eval()
    assert ours.ignored == ()
    with torch.no_grad():
        assert torch.equal(ours.model(IDS).logits, model(IDS).logits)
        assert torch.equal(theirs(IDS).logits, model(IDS).logits)
    again = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)
    assert again(SENTENCES[2])["input_ids"] == tokenizer(SENTENCES[2])["input_ids"]
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        masked_lm.save_language_model(tiny_bert(), tiny_tokenizer(), folder)
    one, two = (masked_lm.checkpoint_digests(tmp_path / name) for name in ("one", "two"))
    assert one == two


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


@pytest.mark.parametrize(
    ("name", "layers", "activation"),
    [
        ("torch", 1, "relu"),
        ("torch", 3, "gelu"),
        ("openvino", 1, "relu"),
        ("openvino", 2, "gelu_new"),
        ("openvino", 3, "gelu"),
    ],
)
def test_engines_give_the_whole_models_log_probabilities(name, layers, activation):
    engine = prepare_engine(tiny_bert(layers=layers, activation=activation), name)
    assert engine.name == name
    for rows in (1, 3):
        with torch.inference_mode():
            got = engine.log_probs(copies(rows))
        expected = bert.whole_model(tiny_bert(layers=layers, activation=activation), copies(rows))
        assert got.dtype == torch.float32
        assert expected.max() < -1
        assert got.tolist() == pytest.approx(expected.tolist(), abs=2e-5)


def test_scores_of_the_engines_agree_whatever_the_budget():
    texts = [*SENTENCES, SENTENCES[0], "no effusion or " * 15]
    model, encodings = tiny_bert(), pll.encode_sentences(tiny_tokenizer(), texts)
    engines = prepare_engine(model, "openvino"), prepare_engine(model, "torch")
    for variant, budget in product(("original", "within_word_l2r"), (1, 30, 4096)):
        one, other = (
            pll.score_encodings(model, encodings, bert.MASK, variant, budget, None, engine)
            for engine in engines
        )
        assert one.tolist() == pytest.approx(other.tolist(), abs=2e-4)


def test_bfloat16_is_near_float32_on_both_engines(monkeypatch):
    monkeypatch.setattr(masked_lm, "multiplies_bfloat16", lambda: True)  # slow elsewhere
    exact = tiny_bert()
    expected = prepare_engine(exact, "torch").log_probs(copies())
    rough = (
        prepare_engine(tiny_bert().bfloat16(), "torch"),
        prepare_engine(tiny_bert().bfloat16(), "openvino"),
        prepare_engine(exact, "openvino", "bfloat16"),
    )
    for engine in rough:
        with torch.inference_mode():
            got = engine.log_probs(copies())
        assert got.dtype == torch.float32
        assert 0 < (got - expected).abs().max() < 0.1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: model.double(), "neither float32 nor bfloat16"),
        (lambda model: setattr(model.config, "is_decoder", True), "for BERT on a CPU"),
        (lambda model: model.bfloat16(), "does not multiply in bfloat16"),
        (lambda model: model.cls.predictions.bias.data.fill_(torch.nan), "as PyTorch does"),
    ],
)
def test_a_model_that_does_not_fit_is_run_by_pytorch_with_one_line_in_the_log(
    change, reason, caplog, monkeypatch
):
    monkeypatch.setattr(masked_lm, "multiplies_bfloat16", lambda: False)
    model = tiny_bert()
    change(model)
    with caplog.at_level(logging.INFO, "medclip.likelihood"):
        assert prepare_engine(model).name == "torch"
    (record,) = [item for item in caplog.records if item.name == "medclip.likelihood"]
    assert reason in record.message
    with pytest.raises(ScoreError, match=reason):
        prepare_engine(model, "openvino")


def test_without_openvino_pytorch_scores_and_who_asks_for_it_gets_the_remedy(monkeypatch):
    monkeypatch.setattr(masked_lm, "has_openvino", lambda: False)
    assert prepare_engine(tiny_bert()).name == "torch"
    with pytest.raises(ScoreError, match=r"pip install '\.\[fast\]'"):
        prepare_engine(tiny_bert(), "openvino")


def test_a_few_sentences_are_not_worth_converting(monkeypatch):
    model, tokenizer = tiny_bert(), tiny_tokenizer()
    prepare = Mock(return_value=prepare_engine(model, "torch"))
    monkeypatch.setattr(pll, "prepare_engine", prepare)
    monkeypatch.setattr(pll, "_WORTH_PREPARING", 500)
    pll.pseudo_log_likelihood(model, tokenizer, SENTENCES)
    pll.pseudo_log_likelihood(model, tokenizer, [*SENTENCES, "no effusion or " * 8])
    assert [call.args[1] for call in prepare.call_args_list] == ["torch", "auto"]
