"""Exact pseudo-log-likelihood of sentences under a masked language model.

Sentences become word pieces. Every word piece is masked in a copy of its own and predicted
from all others; the log-probabilities are summed, not averaged. The tokens that the
tokenizer adds at both ends are neither masked nor scored.

    original           one piece is masked at a time (Salazar et al. 2020)
    within_word_l2r    so are the later pieces of its word (Kauf and Ivanova 2023)

Each distinct encoding is scored once. Copies of one length are batched without padding
under a budget of word pieces, and a long sentence is spread over several batches. How the
model is run is the engine's matter; scores of engines agree within 2e-4 nats.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from medclip_dcl.core.errors import ScoreError
from medclip_dcl.core.progress import Progress
from medclip_dcl.likelihood.masked_lm import (
    ARTIFACT,
    MaskedCopies,
    ScoringEngine,
    load_language_model,
    prepare_engine,
)
from medclip_dcl.models.dual_encoder import evaluating
from medclip_dcl.models.settings import EngineName
from medclip_dcl.models.text_encoder import list_texts


@dataclass(frozen=True)
class Encoding:
    """One sentence as a masked language model reads it; equal encodings score equally."""

    ids: tuple[int, ...]  # token ids, the tokenizer's own tokens at both ends included
    words: tuple[int, ...]
    """Word of every token, from 0; -1 at the tokenizer's own tokens, which are not scored."""

    @property
    def tokens(self) -> int:
        """Number of word pieces that are scored."""
        return sum(word >= 0 for word in self.words)


def encode_sentences(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], max_tokens: int | None = None
) -> list[Encoding]:
    """Cut sentences into word pieces, by a fast tokenizer, one that knows the word of each piece.

    Encodings longer than `max_tokens`, own tokens included, are truncated; None: none is. Text is
    text: `[MASK]` in a report is its letters. A string is one sentence.

    Raises:
        ScoreError: the tokenizer is not a fast one, or a sentence has no word piece.
        QueryError: a sentence is not a string.
    """
    if not tokenizer.is_fast:
        raise ScoreError("a tokenizer that knows no words cannot be scored with; use a fast one")
    listed = list_texts(sentences)
    if not listed:
        return []
    batch = tokenizer(
        listed,
        truncation=max_tokens is not None,
        max_length=max_tokens,
        split_special_tokens=True,
        return_special_tokens_mask=True,
    )
    encodings = []
    for index, (ids, own) in enumerate(
        zip(batch["input_ids"], batch["special_tokens_mask"], strict=True)
    ):
        words = batch.word_ids(index)
        encoding = Encoding(
            tuple(ids), tuple(-1 if mark else word for mark, word in zip(own, words, strict=True))
        )
        if not encoding.tokens:
            raise ScoreError(f"sentence {index} has no word piece; leave empty sentences out")
        encodings.append(encoding)
    return encodings


Variant = Literal["original", "within_word_l2r"]

CPU_BUDGET, GPU_BUDGET = 1024, 1 << 14
"""Word pieces in one forward pass; more are hardly faster, and take more memory: 1.5 GB of a GPU's
for BERT-base. One size for all GPUs, so that batches do not depend on what else a GPU does."""

_SHORTEST = 8  # word pieces that a row counts at least: short rows cost their logits
_WIDE = 256  # word pieces of a row whose attention takes as much memory as all else

_WORTH_PREPARING = 10_000  # word pieces through the model; fewer cost less than converting it


def pseudo_log_likelihood(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    *,
    variant: Variant = "original",
    token_budget: int = 0,
    engine: EngineName = "auto",
    progress: bool = False,
) -> Float[Tensor, " sentences"]:
    """Score sentences by the log-probability of each word piece given all others.

    Args:
        model: a masked language model of transformers, on any device. Dropout is off
            while it scores, whatever mode it is in.
        tokenizer: its tokenizer, a fast one.
        sentences: the sentences, as they are; nothing is normalised here. A string is one.
        variant: what is masked besides the piece that is scored.
        token_budget: word pieces in one forward pass; 0: `CPU_BUDGET` or `GPU_BUDGET`.
        engine: how the model is run, as in `prepare_engine`; `auto` takes PyTorch for a few
            sentences, which cost less than preparing a faster one.
        progress: whether to show progress.

    Returns:
        One sum per sentence in float32 nats, at most 0, in order, on the CPU.

    Raises:
        ScoreError: the model is not a masked language model, a sentence is empty or too long
            for it, a score is not a number, or the engine that is asked for cannot be had.

    Source: Salazar et al. 2020, Section 2; Kauf and Ivanova 2023, Section 3.
    """
    _refuse_decoders(model)
    encodings = encode_sentences(tokenizer, sentences)
    mask_id = _mask_id(tokenizer)
    distinct = set(encodings)
    # Each scored piece asks for a copy of the whole sentence.
    pieces = sum(item.tokens * len(item.ids) for item in distinct)
    if engine == "auto" and pieces < _WORTH_PREPARING:
        engine = "torch"
    prepared = prepare_engine(model, engine)
    budget = token_budget or find_budget(model)
    copies = sum(item.tokens for item in distinct)
    with Progress("score sentences", copies, "copy") if progress else nullcontext() as bar:
        advance = bar.advance if bar else None
        return score_encodings(
            model, encodings, mask_id, variant, budget, advance, prepared
        ).float()


def score_sentences(
    sentences: Any, model: Any, *, progress: bool = False
) -> Float[Tensor, " sentences"]:
    """Score sentences by a masked language model on disk: `pseudo_log_likelihood`.

    Args:
        sentences: the sentences, one or several.
        model: folder of a BERT with its tokenizer, such as CXR-BERT; or a run or its folder, whose
            `language_model` is taken.
        progress: whether to show progress.

    Raises:
        CheckpointError: the folder holds no masked language model.
        QueryError: a sentence is not a string.
        ScoreError: a sentence is empty, or is too long.
    """
    folder = Path(getattr(model, "folder", model))
    loaded = load_language_model(ARTIFACT.at(folder) if ARTIFACT.at(folder).is_dir() else folder)
    listed = list_texts(sentences)
    return pseudo_log_likelihood(loaded.model, loaded.tokenizer, listed, progress=progress)


def score_encodings(
    model: PreTrainedModel,
    encodings: Sequence[Encoding],
    mask_id: int,
    variant: Variant,
    token_budget: int,
    advance: Callable[[int], None] | None = None,
    engine: ScoringEngine | None = None,
) -> Float[Tensor, " sentences"]:
    """Score sentences that are word pieces already, repeats once: float64 nats, on the CPU.

    `advance` is called with the number of masked copies after each forward pass; `engine` is the
    model prepared by `prepare_engine`, None: PyTorch's.

    Raises:
        ScoreError: a sentence is too long for the model, or a score is not a number.
    """
    longest = max((len(encoding.ids) for encoding in encodings), default=0)
    limit = _longest_input(model)
    if longest > limit:
        raise ScoreError(f"a sentence has {longest} word pieces, the model reads {limit}; cut it")
    # In an order of their own: batches, and so the last bits, must not depend on the caller's.
    distinct = sorted(set(encodings), key=lambda item: (len(item.ids), item.ids, item.words))
    index_of = {encoding: number for number, encoding in enumerate(distinct)}
    sums = torch.zeros(len(distinct), dtype=torch.float64)
    device = next(model.parameters()).device
    engine = engine or prepare_engine(model, "torch")
    first = 0
    with torch.inference_mode(), evaluating(model):
        # Copies of one length need no padding, and padding would be most of the work.
        for _, same_length in groupby(distinct, key=lambda item: len(item.ids)):
            group = list(same_length)
            ids = torch.tensor([item.ids for item in group], device=device)
            words = torch.tensor([item.words for item in group], device=device)
            for start, copies in _batches(ids, words, mask_id, variant, token_budget):
                # summed in float64, so that the sum adds no rounding of its own
                log_probs = engine.log_probs(copies).double().cpu()
                sums.index_add_(0, copies.sentence.cpu() + (first + start), log_probs)
                if advance is not None:
                    advance(len(log_probs))
            first += len(group)
    if not bool(torch.isfinite(sums).all()):
        raise ScoreError("the language model returned a log-probability that is not finite")
    return sums[[index_of[encoding] for encoding in encodings]]  # repeats share a score


def find_budget(model: PreTrainedModel) -> int:
    """Find how many word pieces one forward pass should hold on the model's device."""
    return GPU_BUDGET if next(model.parameters()).is_cuda else CPU_BUDGET


def _batches(
    ids: Int[Tensor, "group length"],
    words: Int[Tensor, "group length"],
    mask_id: int,
    variant: Variant,
    token_budget: int,
) -> Iterator[tuple[int, MaskedCopies]]:
    # Batches of about equal size, each with its first sentence: a long one spreads over several.
    sentence, position = (words >= 0).nonzero(as_tuple=True)  # (copies,)
    # A long row counts more than its word pieces, for its attention, so that the memory of a
    # pass hardly depends on the length of the sentences.
    length = ids.shape[1]
    cost = max(_SHORTEST, length + length * length // _WIDE)
    batches = -(-len(sentence) // max(1, token_budget // cost))
    for own, at in zip(sentence.tensor_split(batches), position.tensor_split(batches), strict=True):
        first, last = int(own[0]), int(own[-1])
        hidden = _hidden(words[own], at, variant)
        yield first, MaskedCopies(ids[first : last + 1], own - first, at, hidden, mask_id)


def _hidden(
    words: Int[Tensor, "rows length"], position: Int[Tensor, " rows"], variant: Variant
) -> Bool[Tensor, "rows length"]:
    column = torch.arange(words.shape[1], device=words.device)[None]
    if variant == "original":
        return column == position[:, None]
    own_word = words.gather(1, position[:, None])
    return (words == own_word) & (column >= position[:, None])


def _refuse_decoders(model: PreTrainedModel) -> None:
    # A decoder predicts the next piece, from those before it: its logits would be read as others.
    config = model.config
    is_decoder = bool(getattr(config, "is_decoder", False) or config.is_encoder_decoder)
    # By name: the mappings of classes import every family of models, which takes seconds.
    causal = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()}
    causal -= {*MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()}
    if is_decoder or type(model).__name__ in causal:
        raise ScoreError(
            f"the model ({config.model_type}) is a decoder, and a pseudo-log-likelihood is that of "
            "a masked language model; give one that reads both sides, such as BERT"
        )


def _longest_input(model: PreTrainedModel) -> int:
    # Positions that the model has; RoBERTa's kin keep the first `pad_token_id + 1` unused.
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is None:
        return 1 << 30  # positions that are computed have no end
    embeddings = getattr(model.base_model, "embeddings", None)
    padding = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    return int(limit) if padding is None else int(limit) - int(padding) - 1


def _mask_id(tokenizer: PreTrainedTokenizerBase) -> int:
    if tokenizer.mask_token_id is None:
        raise ScoreError("the tokenizer has no mask token; use that of a masked language model")
    return int(tokenizer.mask_token_id)
