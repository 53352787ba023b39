"""Scores against a loop over single sentences in float64, and against themselves."""

import copy
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import BertForMaskedLM, BertTokenizer

from benchmarks.speed.pll.models import SHORT_PIECES, SIZES, draw, random_bert, tokenizer
from medclip_dcl.likelihood.engines import EngineName
from medclip_dcl.likelihood.masked_lm import save_language_model
from medclip_dcl.likelihood.pll import Variant, pseudo_log_likelihood
from medclip_dcl.likelihood.scorer import ScoringOptions, Task, score_tasks

VARIANTS: tuple[Variant, ...] = ("original", "within_word_l2r")
ENGINES: tuple[EngineName, ...] = ("onnxruntime", "plain")


def reference(model: BertForMaskedLM, words: BertTokenizer, text: str, variant: Variant) -> float:
    """Mask the pieces of one sentence in turn and add up float64 log-probabilities, nats.

    A piece that goes on with a word starts with "##"; `variant` says what else is masked.
    """
    pieces = words.tokenize(text)
    ids = words.convert_tokens_to_ids(pieces)
    rows = []
    for index in range(len(ids)):
        row, later = list(ids), index + 1
        row[index] = words.mask_token_id
        while variant == "within_word_l2r" and later < len(ids) and pieces[later][:2] == "##":
            row[later] = words.mask_token_id
            later += 1
        rows.append([words.cls_token_id, *row, words.sep_token_id])
    with torch.inference_mode():
        log_probs = model(input_ids=torch.tensor(rows)).logits.log_softmax(-1)
    indices = range(len(ids))
    return sum(float(log_probs[index, index + 1, ids[index]]) for index in indices)


def against_float64(size: str, sentences: int) -> dict[str, float]:
    """Compare every engine with the loop, both variants, where words are several pieces.

    Gives "variant, engine" -> largest difference, nats; and the scores' standard deviation.
    """
    words, texts = tokenizer(SHORT_PIECES), draw(sentences, seed=21)
    model = random_bert(SIZES[size], len(words))
    exact = copy.deepcopy(model).double()
    figures = {}
    for variant in VARIANTS:
        expected = torch.tensor(
            [reference(exact, words, text, variant) for text in texts], dtype=torch.float64
        )
        for engine in ENGINES:
            scores = pseudo_log_likelihood(model, words, texts, variant=variant, engine=engine)
            figures[f"{variant}, {engine}"] = float((scores.double() - expected).abs().max())
        figures[f"{variant}, spread"] = float(expected.std(correction=0))
    return figures


def invariance(sentences: int) -> dict[str, float]:
    """Score the same sentences in other company: what was changed -> largest difference, nats."""
    model, words, texts = random_bert(SIZES["small"]), tokenizer(), draw(sentences, seed=31)

    def score(some: Sequence[str], budget: int = 0) -> torch.Tensor:
        return pseudo_log_likelihood(model, words, some, token_budget=budget, engine="onnxruntime")

    first = score(texts)
    order = random.Random(32).sample(range(sentences), sentences)
    few = texts[:20]
    return {
        "order": _apart(score([texts[index] for index in order]), first[order]),
        "duplicates": _apart(score([*texts, *texts[::2]]), torch.cat([first, first[::2]])),
        "budget 64": _apart(score(texts, 64), first),
        "budget 8192": _apart(score(texts, 8192), first),
        "alone": _apart(torch.cat([score([text]) for text in few]), first[: len(few)]),
        "engine": _apart(pseudo_log_likelihood(model, words, texts, engine="plain"), first),
        "workers": _apart(_by_workers(model, words, texts), first),
    }


def _by_workers(model: BertForMaskedLM, words: BertTokenizer, texts: Sequence[str]) -> torch.Tensor:
    counts = [len(words.tokenize(text)) for text in texts]
    tasks = [
        Task(number, tuple(texts[number::8]), tuple((0, count) for count in counts[number::8]))
        for number in range(8)
    ]
    scores = torch.empty(len(texts))
    with tempfile.TemporaryDirectory() as folder:
        save_language_model(model, words, Path(folder))
        for item in score_tasks(ScoringOptions(Path(folder), "original", "float32", 0), tasks, 2):
            scores[item.number :: 8] = torch.tensor(item.pll_nats)
    return scores


def _apart(some: torch.Tensor, others: torch.Tensor) -> float:
    return float((some.double() - others.double()).abs().max())
