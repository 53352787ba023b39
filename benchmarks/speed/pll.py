"""Pseudo-log-likelihoods against minicons and mlm-scoring's algorithm: CPU time on one thread.

    python -m benchmarks.pll [--quick]

Pin it to a core (`taskset -c 0`). Medians over interleaved rounds. Models have random weights,
sentences are real (`TEST_DATA`). Ours is timed in float32 and, at base size, in bfloat16; `apart`
is the largest difference of a float32 score from minicons'. What an exact method costs at least,
memory and drift were measured by commit 5ffd3019.

mlm-scoring itself cannot be installed any more (it needs MXNet and transformers 3.3); its algorithm
is written out here from its source: copies of all sentences in buckets of a fixed width of lengths,
2,000 word pieces at a time, padded, the vocabulary head on the masked position alone.
"""

import copy
import json
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from minicons.scorer import MaskedLMScorer
from numpy.typing import NDArray
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

from benchmarks.record import finish, is_quick, judge
from benchmarks.speed.timing import cpu_ms, interleaved
from medclip_dcl.likelihood.fitting import train_tokenizer
from medclip_dcl.likelihood.masked_lm import prepare_engine
from medclip_dcl.likelihood.pll import CPU_BUDGET, Encoding, encode_sentences, score_encodings
from medclip_dcl.text.sentences import split_section

BARS = {
    "base_minicons_ratio": ">= 2.0",
    "small_minicons_ratio": ">= 5.5",
    "base_port_ratio": ">= 1.4",
    "small_port_ratio": ">= 1.4",
    "base_corpus_minicons_ratio": ">= 5.0",
    "small_corpus_minicons_ratio": ">= 14.0",
    "base_bf16_over_minicons": ">= 3.3",
    **{f"{size}_apart_from_minicons": "<= 0.0002" for size in ("base", "small")},
}
VOCABULARY, LONGEST = 30_522, 512
OURS, BFLOAT16 = "ours", "ours, bfloat16"
MINICONS, PORT = "minicons, batch 1", "masked-row head (port)"
_BUCKET, _SPLIT = 10, 2000  # word pieces: width of a bucket, and in one forward pass

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Size:
    """Sizes of a BERT."""

    width: int
    layers: int
    heads: int


SIZES = {"base": Size(768, 12, 12), "small": Size(256, 4, 4)}
QUICK, FULL = {"base": (2, 0), "small": (12, 6)}, {"base": (8, 6), "small": (60, 40)}
"""Distinct sentences, and those of which a corpus with 60 % repeats is made."""


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
    found: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        report = json.loads(line)
        for section in ("findings", "impression"):
            found += [text for _, text in split_section(report[section] or "").sentences]
    return tuple(found)


@cache
def tokenizer() -> BertTokenizer:
    """Learn word pieces from the corpus."""
    return train_tokenizer(corpus(), VOCABULARY, LONGEST)


def draw(count: int, seed: int) -> list[str]:
    """Draw sentences, no two with the same word pieces."""
    encodings = encode_sentences(tokenizer(), corpus(), LONGEST)
    by_pieces = {item.ids: text for text, item in zip(corpus(), encodings, strict=True)}
    return random.Random(seed).sample(sorted(by_pieces.values()), count)


def with_repeats(distinct: Sequence[str], seed: int) -> list[str]:
    """Repeat an even number of sentences, shuffled: 60 % of the rows are repeats, evenly spread."""
    rows = [*distinct, *distinct, *distinct[::2]]
    random.Random(seed).shuffle(rows)
    return rows


class Minicons:
    """minicons 0.3.39 with the sum as its reduction."""

    def __init__(self, model: BertForMaskedLM, tokenizer: BertTokenizer) -> None:
        self._scorer = MaskedLMScorer(model, "cpu", tokenizer=_Callable(tokenizer))

    def score(self, texts: Sequence[str], batch: int) -> Floats:
        """Score sentences, `batch` in one forward pass; nats."""
        scores: list[float] = []
        for start in range(0, len(texts), batch):
            part = list(texts[start : start + batch])
            scores += self._scorer.sequence_score(part, reduction=lambda x: x.sum(0).item())
        return np.array(scores)


class _Callable:
    """A tokenizer with the method that transformers 5 removed and the release still calls."""

    def __init__(self, tokenizer: BertTokenizer) -> None:
        self._tokenizer: Any = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, *values: Any, **options: Any) -> Any:
        return self._tokenizer(*values, **options)

    batch_encode_plus = __call__


def masked_row_head(model: BertForMaskedLM, encodings: Sequence[Encoding], mask_id: int) -> Floats:
    """Score as mlm-scoring does, nats.

    Source: Salazar et al. 2020; github.com/awslabs/mlm-scoring, `MLMScorerPT`.
    """
    buckets: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, item in enumerate(encodings):
        width = -(-len(item.ids) // _BUCKET) * _BUCKET
        buckets[width] += [(number, at) for at in range(1, len(item.ids) - 1)]
    scores = np.zeros(len(encodings))
    for width, copies in buckets.items():
        rows = max(1, _SPLIT // width)
        for start in range(0, len(copies), rows):
            part = copies[start : start + rows]
            ids = [encodings[number].ids for number, _ in part]
            np.add.at(
                scores, [number for number, _ in part], _padded_pass(model, ids, part, mask_id)
            )
    return scores


def _padded_pass(
    model: Any, ids: Sequence[Sequence[int]], copies: Sequence[tuple[int, int]], mask_id: int
) -> Floats:
    longest = max(map(len, ids))
    batch = torch.zeros(len(ids), longest, dtype=torch.long)
    seen = torch.zeros_like(batch)
    for row, item in enumerate(ids):
        batch[row, : len(item)] = torch.tensor(item)
        seen[row, : len(item)] = 1
    rows, asked = torch.arange(len(ids)), torch.tensor([at for _, at in copies])
    target = batch[rows, asked]
    batch[rows, asked] = mask_id
    with torch.no_grad():
        states = model.bert(input_ids=batch, attention_mask=seen).last_hidden_state
        log_probs = model.cls(states[rows, asked]).log_softmax(-1)
    return log_probs[rows, target].double().numpy()


def compare(size: str, texts: Sequence[str], rounds: int, *, reduced: bool) -> dict[str, float]:
    """Time all on the same rows, after one round to warm up; `reduced`: ours in bfloat16 as well.

    Gives ratios of medians of CPU time, the largest difference from minicons' scores, nats, and the
    CPU seconds that preparing our engine takes.
    """
    model, words = random_bert(SIZES[size]), tokenizer()
    encodings, mask_id = encode_sentences(words, texts), int(words.mask_token_id)
    minicons, scores = Minicons(model, words), dict[str, Floats]()

    def ours(weights: BertForMaskedLM) -> Callable[[], Floats]:
        engine = prepare_engine(weights, "openvino")
        return lambda: score_encodings(
            weights, encodings, mask_id, "original", CPU_BUDGET, None, engine
        ).numpy()

    start = time.process_time()
    rivals: dict[str, Callable[[], Floats]] = {OURS: ours(model)}
    prepare_s = time.process_time() - start
    rivals |= {
        MINICONS: lambda: minicons.score(texts, 1),
        PORT: lambda: masked_row_head(model, encodings, mask_id),
    }
    if reduced:
        rivals[BFLOAT16] = ours(copy.deepcopy(model).bfloat16())

    def turn(name: str) -> Callable[[int], None]:
        return lambda _: scores.update({name: rivals[name]()})

    times = interleaved({name: turn(name) for name in rivals}, rounds, warm_up=1)
    seconds = {name: cpu_ms(times, name) / 1e3 for name in rivals}
    print(f"{size}: {len(texts)} sentences")
    for name, value in seconds.items():
        print(f"    {name:24} {value:8.3f} s CPU, of minicons' {value / seconds[MINICONS]:.2f}")
    figures = {
        "minicons_ratio": seconds[MINICONS] / seconds[OURS],
        "port_ratio": seconds[PORT] / seconds[OURS],
        "apart_from_minicons": float(np.abs(scores[OURS] - scores[MINICONS]).max()),
        "prepare_s": prepare_s,
    }
    if reduced:
        figures["bf16_over_minicons"] = seconds[MINICONS] / seconds[BFLOAT16]
        figures["bf16_over_float32"] = seconds[OURS] / seconds[BFLOAT16]
    return {f"{size}_{name}": value for name, value in figures.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 without reports to take sentences from."""
    quick = is_quick(argv)
    if "TEST_DATA" not in os.environ:
        print("set TEST_DATA to the folder of real images and reports", file=sys.stderr)
        return 1
    torch.set_num_threads(1)
    rounds, figures = 2 if quick else 5, dict[str, float]()
    for size, (distinct, rows) in (QUICK if quick else FULL).items():
        figures |= compare(size, draw(distinct, seed=11), rounds, reduced=size == "base")
        if rows:
            texts = with_repeats(draw(rows, seed=11), seed=12)
            found = compare(size, texts, min(3, rounds), reduced=False)
            figures[f"{size}_corpus_minicons_ratio"] = found[f"{size}_minicons_ratio"]
    return finish("pll", figures, judge(figures, BARS))


if __name__ == "__main__":
    sys.exit(main())
