"""Peers that are timed against ours: minicons, and mlm-scoring's algorithm.

mlm-scoring itself cannot be installed any more (it needs MXNet and transformers 3.3); its
algorithm is written out here from its source: copies of all sentences in buckets of a
fixed width of lengths, 2,000 word pieces at a time, padded, the vocabulary head on the
masked position alone.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from minicons.scorer import MaskedLMScorer
from numpy.typing import NDArray
from transformers import BertForMaskedLM, BertTokenizer

from medclip_dcl.likelihood.pll import Encoding

Floats = NDArray[np.float64]

_BUCKET = 10  # word pieces
_SPLIT = 2000  # word pieces in one forward pass


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
            asked = _padded_pass(
                model, [encodings[number].ids for number, _ in part], part, mask_id
            )
            np.add.at(scores, [number for number, _ in part], asked)
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
