"""Units of scoring: a corpus cut so that the bits of each part depend on the part alone."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from transformers import BertConfig, PreTrainedTokenizerBase

from medclip_dcl.likelihood.pll import Encoding, encode_sentences

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BATCH = 4096  # sentences cut into word pieces at a time
_SPAN_BITS = 16

_UNIT_OPERATIONS = {"cpu": 2.5e11, "cuda": 2.5e13}  # three to ten seconds of a core, one of a GPU
_MOST_PIECES = {"cpu": 200_000, "cuda": 2_000_000}  # of a unit, for models that are tiny
_FEW_PIECES = 4096  # a unit need not be smaller, even where there are few sentences
_SMALLEST_SHARE = 64  # units that a corpus falls into at least, beyond that size


@dataclass(frozen=True)
class Plan:
    """The distinct sentences of a corpus, and the spans and units that scoring them takes.

    It is made before the first result, so that a resumed run gives the same bits. A unit is a
    fixed set of spans that is scored and acknowledged as a whole; a span is a run of scored word
    pieces, [first, last), of one sentence. Sentences of one length are next to each other, so
    that a unit is a few batches without padding; sentences of equal word pieces are scored once;
    and a sentence whose masked copies cost more than a unit is cut between words into several
    spans, whose sums add up. Cost is counted in word pieces that pass through the model: pieces
    of the span x input length.
    """

    keys: np.ndarray  # text key of each sentence, ascending, 32 bytes each
    texts: Sequence[str]
    pieces: Ints  # word pieces of each sentence that are scored
    twin: Ints  # the sentence of equal word pieces that is scored in its stead, often itself
    truncated: int  # sentences whose ends the model cannot read
    text_index: Ints  # sentence of each span; short sentences first
    first: Ints
    last: Ints
    cost: Ints  # of each span
    unit: Ints  # number of each span's unit, ascending
    operations: float  # multiplications and additions for one word piece

    @property
    def scored(self) -> int:
        """Sentences that are scored themselves."""
        return len(np.unique(self.twin))

    @property
    def codes(self) -> Ints:
        """A number for every span, whatever unit it falls into."""
        return span_codes(self.text_index, self.first, self.last)


def plan_units(
    tokenizer: PreTrainedTokenizerBase,
    config: BertConfig,
    keys: Sequence[str],
    texts: Sequence[str],
    *,
    device: str = "cpu",
    unit_pieces: int = 0,
) -> Plan:
    """Cut a corpus into units of about equal cost; the plan depends on the arguments alone.

    `keys`, ascending, name the `texts`; sentences longer than the model reads are truncated. Units
    are sized by the speed of the device, `cpu` or `cuda`, or by `unit_pieces`, the cost of a unit
    (0: some seconds' worth), of which one may cost twice as much, or as the copies of a word do.

    Raises:
        ScoreError: a sentence has no word piece.
    """
    limit = int(config.max_position_embeddings)
    length, pieces, twin, order, truncated = _measure(tokenizer, texts, limit)
    cost = length * pieces
    operations = piece_operations(config)
    if not unit_pieces:
        most = min(_MOST_PIECES[device], int(_UNIT_OPERATIONS[device] / operations))
        share = int(cost[order].sum()) // _SMALLEST_SHARE
        unit_pieces = max(1, min(most, max(_FEW_PIECES, share)))
    rows: list[tuple[int, int, int]] = []
    for index in order.tolist():
        if cost[index] <= unit_pieces:
            rows.append((index, 0, int(pieces[index])))
            continue
        (encoding,) = encode_sentences(tokenizer, [texts[index]], int(length[index]))
        cuts = _cuts(encoding, max(1, unit_pieces // int(length[index])))
        rows += [(index, first, last) for first, last in pairwise(cuts)]
    index, first, last = np.array(rows, np.int64).reshape(-1, 3).T
    span_cost = (last - first) * length[index]
    # By where a span begins, so that none is cut: a unit costs too much by its last span at most.
    unit = (np.cumsum(span_cost) - span_cost) // unit_pieces
    return Plan(
        np.array(keys, "S32"),
        texts,
        pieces,
        twin,
        truncated,
        index,
        first,
        last,
        span_cost,
        unit,
        operations,
    )


def _measure(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], limit: int
) -> tuple[Ints, Ints, Ints, Ints, int]:
    # Input length, scored pieces and twin of each sentence; the sentences that are scored
    # themselves, short ones first; the number that is truncated.
    length, pieces = np.zeros((2, len(texts)), np.int64)
    prints = np.zeros((2, len(texts)), np.uint64)
    truncated = 0
    for start in range(0, len(texts), _BATCH):
        for index, item in enumerate(
            encode_sentences(tokenizer, texts[start : start + _BATCH], limit + 1), start
        ):
            truncated += len(item.ids) > limit  # its own encoding is one piece shorter
            length[index] = min(limit, len(item.ids))
            pieces[index] = item.tokens - (len(item.ids) > limit)
            data = np.array([item.ids, item.words], np.int32).tobytes()
            # 16 bytes of a hash stand for the pieces: a million sentences fit in 16 MB
            prints[:, index] = np.frombuffer(
                hashlib.blake2b(data, digest_size=16).digest(), np.uint64
            )
    # Twins come to stand next to each other, the first of the corpus before the others: it is the
    # one that is scored, whatever order a hash gives.
    by_piece = np.lexsort((np.arange(len(texts)), *prints, length))
    same = (np.diff(prints[:, by_piece]) == 0).all(0) & (np.diff(length[by_piece]) == 0)
    starts = np.append(True, ~same)
    twin = np.empty(len(texts), np.int64)
    twin[by_piece] = by_piece[starts][np.cumsum(starts) - 1]
    return length, pieces, twin, by_piece[starts], truncated


def piece_operations(config: BertConfig) -> float:
    """Count the multiplications and additions of a model's layers for one word piece.

    The vocabulary head, which runs on masked positions alone, and attention are left out.
    """
    width = float(config.hidden_size)
    return 2.0 * config.num_hidden_layers * width * (4 * width + 2 * config.intermediate_size)


def span_codes(index: Ints, first: Ints, last: Ints) -> Ints:
    """Return every span a number of its own; pieces count to 65,535."""
    codes: Ints = (index << 2 * _SPAN_BITS) | (first << _SPAN_BITS) | last
    return codes


def units_of(plan: Plan, left: NDArray[np.bool_]) -> Iterator[Ints]:
    """Return the spans that are left of one unit after the other, as rows of the plan."""
    rows = np.flatnonzero(left)
    ends = np.flatnonzero(np.diff(plan.unit[rows])) + 1
    yield from (part for part in np.split(rows, ends) if len(part))


def part_of(encoding: Encoding, first: int, last: int) -> Encoding:
    """Ask for scored pieces [first, last), whole words, of a sentence; others are only read."""
    if (first, last) == (0, encoding.tokens):
        return encoding
    words, number = [], 0
    for word in encoding.words:
        asked = word >= 0 and first <= number < last
        number += word >= 0
        words.append(word if asked else -1)
    return Encoding(encoding.ids, tuple(words))


def _cuts(encoding: Encoding, most: int) -> list[int]:
    # Between words, into spans of at most `most` pieces, or of one word.
    words = [word for word in encoding.words if word >= 0]
    starts = [
        number for number, word in enumerate(words) if not number or word != words[number - 1]
    ]
    cuts = [0]
    for start, end in pairwise([*starts, len(words)]):
        if end - cuts[-1] > most and start > cuts[-1]:
            cuts.append(start)
    return [*cuts, len(words)]
