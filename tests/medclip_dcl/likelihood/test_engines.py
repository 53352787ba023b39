"""The fast engine: the plain one's scores, and the plain one wherever it does not fit."""

import logging

import pytest
import torch

from medclip_dcl.errors import ScoreError
from medclip_dcl.likelihood import engines as module
from medclip_dcl.likelihood.engines import (
    CPU_BUDGET,
    BertGraphEngine,
    budget_that_fits,
    find_budget,
    prepare_engine,
    rows_within,
)
from medclip_dcl.likelihood.masked_lm import PlainEngine
from medclip_dcl.likelihood.pll import encode_sentences, pseudo_log_likelihood, score_encodings
from testing.bert import MASK, SENTENCES, copies, tiny_bert, tiny_tokenizer, whole_model


def test_copies_are_masked_where_hidden_and_ask_what_was_there():
    assert copies().masked().tolist() == [[2, 4, 7, 9, 3], [2, 5, 4, 4, 3], [2, 6, 8, 4, 3]]
    assert copies().targets().tolist() == [5, 7, 10]


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", ["onnxruntime", "plain"])
def test_engines_give_the_whole_models_log_probabilities(name, layers, rows):
    model = tiny_bert(layers=layers)
    with torch.inference_mode():
        got = prepare_engine(model, name, 1).log_probs(copies(rows))
    assert got.dtype == torch.float32
    expected = whole_model(model, copies(rows))
    assert expected.max() < -1
    assert got.tolist() == pytest.approx(expected.tolist(), abs=2e-5)


@pytest.mark.parametrize("variant", ["original", "within_word_l2r"])
@pytest.mark.parametrize("budget", [1, 30, 4096])
def test_scores_of_the_engines_agree_whatever_the_budget(variant, budget):
    model, tokenizer = tiny_bert(), tiny_tokenizer()
    texts = [*SENTENCES, SENTENCES[0], "no effusion or " * 15]
    plain, fast = (
        pseudo_log_likelihood(
            model, tokenizer, texts, variant=variant, engine=name, token_budget=budget
        )
        for name in ("plain", "onnxruntime")
    )
    assert fast.tolist() == pytest.approx(plain.tolist(), abs=2e-4)


def test_bfloat16_is_near_float32_on_both_engines_and_asks_for_weights_in_it(monkeypatch):
    monkeypatch.setattr(module, "_capabilities", lambda: ["BF16"])  # slow elsewhere, and the same
    exact = tiny_bert()
    rough, expected = tiny_bert().bfloat16(), prepare_engine(exact, "plain").log_probs(copies())
    for name in ("openvino", "plain"):
        with torch.inference_mode():
            got = prepare_engine(rough, name, 1).log_probs(copies())
        assert got.dtype == torch.float32
        assert 0 < (got - expected).abs().max() < 0.1
    with pytest.raises(ScoreError, match="weights are not bfloat16"):
        prepare_engine(exact, "openvino")
    with pytest.raises(ScoreError, match="weights are not float32"):
        prepare_engine(rough, "onnxruntime")


def test_two_threads_give_the_scores_of_one():
    model, encodings = tiny_bert(), encode_sentences(tiny_tokenizer(), SENTENCES)
    one, two = (
        score_encodings(
            model, encodings, MASK, "original", 64, None, prepare_engine(model, "onnxruntime", n)
        )
        for n in (1, 2)
    )
    assert two.tolist() == pytest.approx(one.tolist(), abs=1e-5)


def test_auto_takes_the_fast_way_for_bert_and_holds_its_weights_as_they_were():
    model, encodings = tiny_bert(), encode_sentences(tiny_tokenizer(), SENTENCES)
    engine = prepare_engine(model)
    assert isinstance(engine, BertGraphEngine)
    before = score_encodings(model, encodings, MASK, "original", 64, None, engine)
    model.bert.encoder.layer[0].output.dense.weight.data.add_(1.0)
    after = score_encodings(model, encodings, MASK, "original", 64, None, engine)
    assert torch.equal(before, after)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: model.double(), "not float32"),
        (lambda model: setattr(model.config, "is_decoder", True), "not BertForMaskedLM"),
        (lambda model: setattr(model.config, "hidden_act", "silu"), "'silu' is none of"),
        (
            lambda model: setattr(model.bert.encoder.layer[0].output, "dense", torch.nn.GRU(1, 1)),
            r"weights in \['GRU'\]",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_run_plainly_with_one_line_in_the_log(change, reason, caplog):
    model = tiny_bert()
    change(model)
    with caplog.at_level(logging.INFO, "medclip.likelihood"):
        assert isinstance(prepare_engine(model), PlainEngine)
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    with pytest.raises(ScoreError, match=reason):
        prepare_engine(model, "onnxruntime")


@pytest.mark.parametrize(
    ("said", "expected"), [(["FP32", "BF16"], BertGraphEngine), (["FP32"], PlainEngine)]
)
def test_auto_takes_openvino_in_bfloat16_where_the_processor_has_it(monkeypatch, said, expected):
    monkeypatch.setattr(module, "_capabilities", lambda: said)
    assert type(prepare_engine(tiny_bert().bfloat16())) is expected


def test_a_few_sentences_are_not_worth_preparing(monkeypatch):
    model, tokenizer, made = tiny_bert(), tiny_tokenizer(), []
    monkeypatch.setattr(
        module, "BertGraphEngine", lambda *call: made.append(call) or PlainEngine(model)
    )
    pseudo_log_likelihood(model, tokenizer, SENTENCES)
    assert not made
    pseudo_log_likelihood(model, tokenizer, [*SENTENCES, "no effusion or " * 18])
    assert len(made) == 1


def test_rows_keep_to_the_budget_and_long_ones_count_more():
    assert rows_within(1024, 3) == rows_within(1024, 8) == 128
    assert rows_within(1024, 16) == 1024 // 17
    assert rows_within(1024, 512) == rows_within(1, 5) == 1
    assert all(rows_within(1024, length) * length <= 1024 for length in range(1, 1025))


def test_the_budget_on_a_gpu_is_a_stable_share_of_its_free_memory():
    model = tiny_bert()
    assert find_budget(model) == CPU_BUDGET
    piece = 4 * (8 * 32 + 2 * 64 + 3 * 34 / 8)
    assert budget_that_fits(int(4 * piece * 5000), model) == 4096
    assert budget_that_fits(int(4 * piece * 4097), model) == 4096
    assert budget_that_fits(0, model) == 1024
    assert budget_that_fits(1 << 40, model) == 65_536
