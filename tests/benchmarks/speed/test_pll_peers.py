"""The peers score what ours scores, and the floor counts what can be counted by hand."""

import pytest
from transformers import BertConfig

from benchmarks.speed.pll.__main__ import main
from benchmarks.speed.pll.exactness import reference
from benchmarks.speed.pll.models import with_repeats
from benchmarks.speed.pll.peers import Minicons, masked_row_head
from benchmarks.speed.pll.speed import operations
from medclip_dcl.likelihood.pll import encode_sentences, pseudo_log_likelihood
from testing.bert import SENTENCES, tiny_bert, tiny_tokenizer


@pytest.mark.filterwarnings("ignore")
def test_peers_and_the_loop_agree_with_ours():
    model, tokenizer, texts = tiny_bert(), tiny_tokenizer(), list(SENTENCES)
    ours = pseudo_log_likelihood(model, tokenizer, texts).tolist()
    encodings = encode_sentences(tokenizer, texts)
    assert masked_row_head(model, encodings, 4).tolist() == pytest.approx(ours, abs=2e-4)
    minicons = Minicons(model, tokenizer)
    assert minicons.score(texts, 1).tolist() == pytest.approx(ours, abs=2e-4)
    assert minicons.score(texts, 4).tolist() == pytest.approx(ours, abs=2e-4)
    looped = [reference(model, tokenizer, text, "original") for text in texts]
    assert looped == pytest.approx(ours, abs=2e-4)


def test_operations_are_those_counted_by_hand():
    config = BertConfig(
        vocab_size=5,
        hidden_size=2,
        intermediate_size=3,
        num_hidden_layers=2,
        num_attention_heads=1,
    )
    # one piece, three places, width 2: products of numbers
    first = 3 * 4 * (3 + 1) + 3 * (2 * 3 * 2) + 3 * (4 + 2 * 6)
    last = 3 * 4 + 2 * 3 * 2 + (4 + 2 * 6)
    head = 4 + 2 * 5
    assert operations(config, 1) == 2 * (first + last + head)


def test_a_third_layer_costs_its_six_matrices_and_attention():
    two, three = (BertConfig(num_hidden_layers=layers) for layers in (2, 3))
    rows, d, length = 10 * 12, 768, 12
    more = 2 * rows * (4 * d * d + 2 * d * 4 * d + 2 * length * d)
    assert operations(three, 10) - operations(two, 10) == more


def test_three_of_five_rows_are_repeats():
    rows = with_repeats([*"abcdef"], seed=1)
    assert len(rows) == 15
    assert sorted(set(rows)) == [*"abcdef"]


def test_without_reports_it_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.delenv("TEST_DATA", raising=False)
    assert main([]) == 1
    assert "TEST_DATA" in capsys.readouterr().err
