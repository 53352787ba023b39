"""The peers score what ours scores."""

import pytest

from benchmarks.speed.pll import Minicons, masked_row_head
from medclip_dcl.likelihood.pll import encode_sentences, pseudo_log_likelihood
from tests.support.bert import SENTENCES, tiny_bert, tiny_tokenizer


@pytest.mark.filterwarnings("ignore")
def test_peers_agree_with_ours():
    model, tokenizer, texts = tiny_bert(), tiny_tokenizer(), list(SENTENCES)
    ours = pseudo_log_likelihood(model, tokenizer, texts).tolist()
    encodings = encode_sentences(tokenizer, texts)
    assert masked_row_head(model, encodings, 4).tolist() == pytest.approx(ours, abs=2e-4)
    assert Minicons(model, tokenizer).score(texts, 4).tolist() == pytest.approx(ours, abs=2e-4)
