"""The peers score what ours scores."""

import pytest

from benchmarks.speed.pll import Minicons, main, masked_row_head, with_repeats
from medclip_dcl.likelihood.pll import encode_sentences, pseudo_log_likelihood
from testing.bert import SENTENCES, tiny_bert, tiny_tokenizer


@pytest.mark.filterwarnings("ignore")
def test_peers_agree_with_ours():
    model, tokenizer, texts = tiny_bert(), tiny_tokenizer(), list(SENTENCES)
    ours = pseudo_log_likelihood(model, tokenizer, texts).tolist()
    encodings = encode_sentences(tokenizer, texts)
    assert masked_row_head(model, encodings, 4).tolist() == pytest.approx(ours, abs=2e-4)
    assert Minicons(model, tokenizer).score(texts, 4).tolist() == pytest.approx(ours, abs=2e-4)


def test_three_of_five_rows_are_repeats():
    rows = with_repeats([*"abcdef"], seed=1)
    assert len(rows) == 15
    assert sorted(set(rows)) == [*"abcdef"]


def test_without_reports_it_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.delenv("TEST_DATA", raising=False)
    assert main([]) == 1
    assert "TEST_DATA" in capsys.readouterr().err
