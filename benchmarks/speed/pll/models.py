"""What is scored: sentences of real reports, and BERTs of two sizes with random weights."""

import json
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

from medclip_dcl.likelihood.masked_corpus import train_tokenizer
from medclip_dcl.likelihood.pll import Encoding, encode_sentences
from medclip_dcl.text.sentences import SentencesConfig, split_section

VOCABULARY = 30_522
SHORT_PIECES = 600
"""A vocabulary in which many words are several pieces."""
LONGEST = 512


@dataclass(frozen=True)
class Size:
    """Sizes of a BERT."""

    width: int
    layers: int
    heads: int


SIZES = {"base": Size(768, 12, 12), "small": Size(256, 4, 4)}


def random_bert(size: Size, vocabulary: int = VOCABULARY) -> BertForMaskedLM:
    """Make a BERT whose states keep their scale from layer to layer, the same every time.

    Matrices are drawn with variance 2 / inputs, so that log-probabilities are nats apart.
    """
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.width,
    )
    model = BertForMaskedLM(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                weight.normal_(0, (2 / weight.shape[1]) ** 0.5, generator=generator)
            elif "LayerNorm.weight" not in name:
                weight.normal_(0, 0.02, generator=generator)
    return model.train(False)


@cache
def corpus() -> tuple[str, ...]:
    """Split the Open-i reports of `TEST_DATA` into sentences, repeats included."""
    path = Path(os.environ["TEST_DATA"]) / "openi" / "reports.jsonl"
    settings, found = SentencesConfig(), []
    for line in path.read_text(encoding="utf-8").splitlines():
        report = json.loads(line)
        for section in ("findings", "impression"):
            found += [text for _, text in split_section(report[section] or "", settings).sentences]
    return tuple(found)


def has_data() -> bool:
    """Return whether there are reports to take sentences from, and say so where not."""
    if "TEST_DATA" in os.environ:
        return True
    print("set TEST_DATA to the folder of real images and reports", file=sys.stderr)
    return False


@cache
def tokenizer(vocabulary: int = VOCABULARY) -> BertTokenizer:
    """Learn word pieces from the corpus."""
    return train_tokenizer(corpus(), vocabulary, LONGEST)


def draw(count: int, seed: int) -> list[str]:
    """Draw sentences, no two with the same word pieces."""
    by_pieces = {
        item.ids: text
        for text, item in zip(
            corpus(), encode_sentences(tokenizer(), corpus(), LONGEST), strict=True
        )
    }
    return random.Random(seed).sample(sorted(by_pieces.values()), count)


def with_repeats(distinct: Sequence[str], seed: int) -> list[str]:
    """Repeat an even number of sentences, shuffled: 60 % of the rows are repeats, evenly spread."""
    rows = [*distinct, *distinct, *distinct[::2]]
    random.Random(seed).shuffle(rows)
    return rows


def long_encoding(pieces: int, asked: int | None = None) -> Encoding:
    """Put sentences of the corpus one after the other: one input of `pieces` + 2 word pieces.

    The first `asked` pieces are scored; None: all.
    """
    text = " ".join(corpus()[:400])
    (whole,) = encode_sentences(tokenizer(), [text], pieces + 2)
    asked = pieces if asked is None else asked
    words = (*whole.words[: asked + 1], *(-1 for _ in whole.words[asked + 1 :]))
    return Encoding(whole.ids, words)
