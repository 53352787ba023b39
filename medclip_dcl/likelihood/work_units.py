"""Work cut into units before the first result, so that a run that goes on gives the same bits.

A unit is a fixed set of spans that is scored and acknowledged as a whole. Sentences of one
length stand together, so that a unit is a few batches without padding; sentences of equal
word pieces are scored once; and a sentence whose masked copies cost more than a unit is cut
between words into several spans, whose sums add up.

Axes and symbols
    sentences   those of the corpus, in order of their keys; a place counts them from 0
    spans       runs of scored word pieces of one sentence: [first, last)
    cost        word pieces that pass through the model: pieces of the span x input length
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from transformers import BertConfig, PreTrainedTokenizerBase

from medclip_dcl.likelihood.pll import Encoding, encode_sentences

Ints = NDArray[np.int64]

_BATCH = 4096  # sentences cut into word pieces at a time
_SPAN_BITS = 16


@dataclass(frozen=True)
class Measured:
    """What scoring a corpus takes, sentence by sentence."""

    length: Ints
    """Input length, the tokenizer's own tokens included."""
    pieces: Ints
    """Word pieces that are scored."""
    twin: Ints
    """Place of the sentence of equal word pieces that is scored in its stead, often its own."""
    order: Ints
    """Places of the sentences that are scored themselves, short ones first."""
    truncated: int
    """Sentences whose ends the model cannot read."""

    @property
    def cost(self) -> int:
        """Word pieces that pass through the model in all."""
        return int((self.length * self.pieces)[self.order].sum())


@dataclass(frozen=True)
class Plan:
    """All spans of a corpus, and the units that they fall into."""

    text_index: Ints
    """Place of the sentence of each span."""
    first: Ints
    last: Ints
    cost: Ints
    unit: Ints
    """Number of each span's unit, ascending."""

    @property
    def codes(self) -> Ints:
        """One number per span that names it whatever unit it falls into."""
        return span_codes(self.text_index, self.first, self.last)


def piece_operations(config: BertConfig) -> float:
    """Estimate what one word piece costs in a forward pass.

    Args:
        config: sizes of the model.

    Returns:
        Multiplications and additions of its layers; the vocabulary head, which runs on
        masked positions alone, and attention among pieces are left out.
    """
    width = float(config.hidden_size)
    return 2.0 * config.num_hidden_layers * width * (4 * width + 2 * config.intermediate_size)


def span_codes(index: Ints, first: Ints, last: Ints) -> Ints:
    """Name spans by one number each.

    Args:
        index: place of the sentence.
        first: first scored piece, below 65,536.
        last: the piece after the last, below 65,536.

    Returns:
        The numbers.
    """
    codes: Ints = (index << 2 * _SPAN_BITS) | (first << _SPAN_BITS) | last
    return codes


def measure(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], limit: int) -> Measured:
    """Cut sentences into word pieces and find those that are equal.

    Args:
        tokenizer: a fast tokenizer.
        texts: the sentences, in order of their keys.
        limit: longest input of the model, word pieces.

    Returns:
        Their lengths, twins and order.

    Raises:
        ScoreError: a sentence has no word piece.
    """
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
            prints[:, index] = np.frombuffer(_print(item), np.uint64)
    by_piece = np.lexsort((np.arange(len(texts)), *prints, length))
    same = (np.diff(prints[:, by_piece]) == 0).all(0) & (np.diff(length[by_piece]) == 0)
    starts = np.append(True, ~same)
    twin = np.empty(len(texts), np.int64)
    twin[by_piece] = by_piece[starts][np.cumsum(starts) - 1]
    return Measured(length, pieces, twin, by_piece[starts], truncated)


def plan_units(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], measured: Measured, unit_cost: int
) -> Plan:
    """Cut a corpus into units of about equal cost.

    Args:
        tokenizer: the one that the corpus was measured with.
        texts: the sentences, in order of their keys.
        measured: what `measure` found of them.
        unit_cost: cost of a unit; one may cost up to twice as much, or more where the
            copies of a single word do.

    Returns:
        The plan; it depends on the arguments alone.
    """
    cost = measured.length * measured.pieces
    rows: list[tuple[int, int, int]] = []
    for index in measured.order.tolist():
        if cost[index] <= unit_cost:
            rows.append((index, 0, int(measured.pieces[index])))
            continue
        length = int(measured.length[index])
        (encoding,) = encode_sentences(tokenizer, [texts[index]], length)
        cuts = _cuts(encoding, max(1, unit_cost // length))
        rows += [(index, first, last) for first, last in pairwise(cuts)]
    index, first, last = np.array(rows, np.int64).reshape(-1, 3).T
    span_cost = (last - first) * measured.length[index]
    unit = (np.cumsum(span_cost) - span_cost) // unit_cost
    return Plan(index, first, last, span_cost, unit)


def units_of(plan: Plan, left: NDArray[np.bool_]) -> Iterator[Ints]:
    """Give the spans of each unit that has some left.

    Args:
        plan: the plan.
        left: per span, whether it is still to be scored.

    Yields:
        Rows of the plan, unit by unit.
    """
    rows = np.flatnonzero(left)
    ends = np.flatnonzero(np.diff(plan.unit[rows])) + 1
    yield from (part for part in np.split(rows, ends) if len(part))


def part_of(encoding: Encoding, first: int, last: int) -> Encoding:
    """Ask for a run of a sentence's scored pieces alone.

    Args:
        encoding: the whole sentence.
        first: first piece that is asked, counted among the scored ones, at a word's start.
        last: the piece after the last, at a word's start or the end.

    Returns:
        The same input; pieces outside the run are read, and not scored.
    """
    if (first, last) == (0, encoding.tokens):
        return encoding
    words, number = [], 0
    for word in encoding.words:
        asked = word >= 0 and first <= number < last
        number += word >= 0
        words.append(word if asked else -1)
    return Encoding(encoding.ids, tuple(words))


def _cuts(encoding: Encoding, most: int) -> list[int]:
    """Cut a sentence between words into spans of at most `most` pieces, or of one word."""
    words = [word for word in encoding.words if word >= 0]
    starts = [
        number for number, word in enumerate(words) if not number or word != words[number - 1]
    ]
    cuts = [0]
    for start, end in pairwise([*starts, len(words)]):
        if end - cuts[-1] > most and start > cuts[-1]:
            cuts.append(start)
    return [*cuts, len(words)]


def _print(encoding: Encoding) -> bytes:
    """Hash an encoding to 16 bytes."""
    pieces = np.array([encoding.ids, encoding.words], np.int32)
    return hashlib.blake2b(pieces.tobytes(), digest_size=16).digest()
