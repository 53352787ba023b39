"""Exact pseudo-log-likelihood of sentences under a masked language model.

Every word piece is masked in a copy of its own and predicted from all others; the
log-probabilities are summed, not averaged. The tokens that the tokenizer adds at both
ends are neither masked nor scored.

    original           one piece is masked at a time (Salazar et al. 2020)
    within_word_l2r    so are the later pieces of its word (Kauf and Ivanova 2023)

Each distinct encoding is scored once. Copies of one length are batched without padding
under a budget of word pieces, and a long sentence is spread over several batches.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from medclip_dcl.errors import ScoreError
from medclip_dcl.likelihood.encoding import Encoding, encode_sentences
from medclip_dcl.likelihood.masked_rows import masked_logits
from medclip_dcl.progress import Progress

Variant = Literal["original", "within_word_l2r"]


def pseudo_log_likelihood(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    *,
    variant: Variant = "original",
    token_budget: int = 4096,
    progress: bool = False,
) -> Float[Tensor, " sentences"]:
    """Score sentences by the log-probability of each word piece given all others.

    Args:
        model: a masked language model of transformers, on any device. Dropout is off
            while it scores, whatever mode it is in.
        tokenizer: its tokenizer, a fast one.
        sentences: the sentences, as they are; nothing is normalised here.
        variant: what is masked beside the piece that is scored.
        token_budget: word pieces in one forward pass.
        progress: whether to show progress.

    Returns:
        One sum per sentence in float32 nats, at most 0, in order, on the CPU.

    Raises:
        ScoreError: a sentence is empty or too long for the model, or a score is no
            number.

    Source: Salazar et al. 2020, Section 2; Kauf and Ivanova 2023, Section 3.
    """
    encodings = encode_sentences(tokenizer, sentences)
    mask_id = _mask_id(tokenizer)
    if not progress:
        scores = score_encodings(model, encodings, mask_id, variant, token_budget)
        return scores.float()
    total = sum(encoding.tokens for encoding in set(encodings))
    with Progress("score sentences", total, "copy") as bar:
        scores = score_encodings(model, encodings, mask_id, variant, token_budget, bar.advance)
    return scores.float()


def score_encodings(
    model: PreTrainedModel,
    encodings: Sequence[Encoding],
    mask_id: int,
    variant: Variant,
    token_budget: int,
    advance: Callable[[int], None] | None = None,
) -> Float[Tensor, " sentences"]:
    """Score sentences that are word pieces already.

    Args:
        model: as in `pseudo_log_likelihood`.
        encodings: the sentences; repeats are scored once.
        mask_id: id of the mask token.
        variant: as in `pseudo_log_likelihood`.
        token_budget: word pieces in one forward pass.
        advance: told the number of masked copies after each forward pass.

    Returns:
        One sum per sentence, nats, float64, on the CPU. Log-probabilities are float32.

    Raises:
        ScoreError: a sentence is too long for the model, or a score is no number.
    """
    longest = max((len(encoding.ids) for encoding in encodings), default=0)
    limit = _longest_input(model)
    if longest > limit:
        raise ScoreError(f"a sentence has {longest} word pieces, the model reads {limit}; cut it")
    distinct = sorted(set(encodings), key=lambda item: (len(item.ids), item.ids, item.words))
    place = {encoding: number for number, encoding in enumerate(distinct)}
    sums = torch.zeros(len(distinct), dtype=torch.float64)
    first = 0
    with torch.inference_mode(), _evaluating(model):
        for group in _by_length(distinct):
            sums[first : first + len(group)] = _score_group(
                model, group, mask_id, variant, token_budget, advance
            )
            first += len(group)
    if not bool(torch.isfinite(sums).all()):
        raise ScoreError("the language model returned a log-probability that is no finite number")
    return sums[[place[encoding] for encoding in encodings]]


def _score_group(
    model: PreTrainedModel,
    group: Sequence[Encoding],
    mask_id: int,
    variant: Variant,
    token_budget: int,
    advance: Callable[[int], None] | None,
) -> Float[Tensor, " group"]:
    """Score encodings of one length."""
    device = next(model.parameters()).device
    ids = torch.tensor([item.ids for item in group], device=device)  # (group, length)
    words = torch.tensor([item.words for item in group], device=device)  # (group, length)
    sentence, position = (words >= 0).nonzero(as_tuple=True)  # (copies,)
    log_probs = []
    rows = max(1, token_budget // ids.shape[1])
    for chunk in torch.split(torch.arange(len(sentence), device=device), rows):
        at = position[chunk]
        copies = ids[sentence[chunk]]  # (rows, length)
        target = copies.gather(1, at[:, None])
        hidden = _hidden(words[sentence[chunk]], at, variant)
        logits = masked_logits(model, copies.masked_fill(hidden, mask_id), at)
        log_probs.append(logits.float().log_softmax(-1).gather(1, target)[:, 0])
        if advance is not None:
            advance(len(chunk))
    sums = torch.zeros(len(group), dtype=torch.float64)
    return sums.index_add_(0, sentence.cpu(), torch.cat(log_probs).double().cpu())


def _hidden(
    words: Int[Tensor, "rows length"], position: Int[Tensor, " rows"], variant: Variant
) -> Tensor:
    """Mark what is masked in each copy."""
    column = torch.arange(words.shape[1], device=words.device)[None]
    if variant == "original":
        return column == position[:, None]
    own_word = words.gather(1, position[:, None])
    return (words == own_word) & (column >= position[:, None])


def _by_length(encodings: Sequence[Encoding]) -> Iterator[list[Encoding]]:
    """Group encodings that are sorted by length."""
    group: list[Encoding] = []
    for encoding in encodings:
        if group and len(encoding.ids) != len(group[0].ids):
            yield group
            group = []
        group.append(encoding)
    if group:
        yield group


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout off, and give every module its own mode back."""
    training = [module for module in model.modules() if module.training]
    model.train(False)
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _longest_input(model: PreTrainedModel) -> int:
    """Positions that the model has; RoBERTa's kin keep the first `pad_token_id + 1` unused."""
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is None:
        return 1 << 30
    embeddings = getattr(model.base_model, "embeddings", None)
    padding = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    return int(limit) if padding is None else int(limit) - int(padding) - 1


def _mask_id(tokenizer: PreTrainedTokenizerBase) -> int:
    if tokenizer.mask_token_id is None:
        raise ScoreError("the tokenizer has no mask token; use that of a masked language model")
    return int(tokenizer.mask_token_id)
