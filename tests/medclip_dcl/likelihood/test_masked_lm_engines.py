"""Engines give the whole model's log-probabilities, or PyTorch scores."""

import logging
from itertools import product

import pytest
import torch

from medclip_dcl.core.errors import ScoreError
from medclip_dcl.likelihood import masked_lm, pll
from medclip_dcl.likelihood.masked_lm import ScoringEngine, prepare_engine
from medclip_dcl.likelihood.pll import (
    encode_sentences,
    pseudo_log_likelihood,
    score_encodings,
)
from tests.support.bert import MASK, SENTENCES, copies, tiny_bert, tiny_tokenizer, whole_model


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
        expected = whole_model(tiny_bert(layers=layers, activation=activation), copies(rows))
        assert got.dtype == torch.float32
        assert expected.max() < -1
        assert got.tolist() == pytest.approx(expected.tolist(), abs=2e-5)


def test_scores_of_the_engines_agree_whatever_the_budget():
    texts = [*SENTENCES, SENTENCES[0], "no effusion or " * 15]
    model, encodings = tiny_bert(), encode_sentences(tiny_tokenizer(), texts)
    engines = prepare_engine(model, "openvino"), prepare_engine(model, "torch")
    for variant, budget in product(("original", "within_word_l2r"), (1, 30, 4096)):
        one, other = (
            score_encodings(model, encodings, MASK, variant, budget, None, engine)
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
    model, tokenizer, names = tiny_bert(), tiny_tokenizer(), []

    def prepare(model, name) -> ScoringEngine:
        names.append(name)
        return prepare_engine(model, "torch")

    monkeypatch.setattr(pll, "prepare_engine", prepare)
    monkeypatch.setattr(pll, "_WORTH_PREPARING", 500)
    pseudo_log_likelihood(model, tokenizer, SENTENCES)
    pseudo_log_likelihood(model, tokenizer, [*SENTENCES, "no effusion or " * 8])
    assert names == ["torch", "auto"]
