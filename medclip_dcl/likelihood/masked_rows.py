"""Log-probability of one masked position per row: any masked LM, and a shorter way through BERT.

A row asks for one position alone. BERT's last layer and its vocabulary head therefore
run on that position only; keys and values still come from the whole row.

Axes
    sentences   distinct inputs of one length
    rows        masked copies of them
    length      word pieces of a row
    vocab       the vocabulary
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import BertForMaskedLM, PreTrainedModel


@dataclass(frozen=True)
class MaskedCopies:
    """Masked copies of sentences of one length; each asks for one word piece."""

    ids: Int[Tensor, "sentences length"]
    """Token ids of the sentences, nothing masked."""
    sentence: Int[Tensor, " rows"]
    """Sentence that each row is a copy of, from 0."""
    position: Int[Tensor, " rows"]
    """Position that is asked, from 0."""
    hidden: Bool[Tensor, "rows length"]
    """What is masked in each row; the asked position is."""
    mask_id: int

    def masked(self) -> Int[Tensor, "rows length"]:
        """Write the copies out.

        Returns:
            Token ids with the masks in place.
        """
        return self.ids[self.sentence].masked_fill(self.hidden, self.mask_id)

    def targets(self) -> Int[Tensor, " rows"]:
        """Look up the word pieces that are asked.

        Returns:
            Their token ids.
        """
        return self.ids[self.sentence, self.position]


@runtime_checkable
class Engine(Protocol):
    """A way to run a masked language model."""

    def log_probs(self, copies: MaskedCopies) -> Float[Tensor, " rows"]:
        """Score one word piece per row.

        Args:
            copies: the rows, on the model's device.

        Returns:
            Log-probability of each asked piece, nats, float32.
        """
        ...


class PlainEngine:
    """Runs a masked language model as transformers does, on its own device.

    Args:
        model: any masked language model, in eval mode whenever it scores.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def log_probs(self, copies: MaskedCopies) -> Float[Tensor, " rows"]:
        """Score one word piece per row.

        Args:
            copies: the rows, on the model's device.

        Returns:
            Log-probability of each asked piece, nats, float32 whatever the model's dtype.
        """
        logits = masked_logits(self._model, copies.masked(), copies.position).float()
        return logits.log_softmax(-1).gather(1, copies.targets()[:, None])[:, 0]


def masked_logits(
    model: PreTrainedModel, ids: Int[Tensor, "rows length"], position: Int[Tensor, " rows"]
) -> Float[Tensor, "rows vocab"]:
    """Predict one position of every row.

    Args:
        model: a masked language model in eval mode.
        ids: token ids without padding, masks in place.
        position: the position that is asked of each row, from 0.

    Returns:
        Unnormalised log-probabilities of the vocabulary at that position.
    """
    if is_bert(model):
        return _bert_logits(model, ids, position)
    rows = torch.arange(len(ids), device=ids.device)
    logits: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    return logits[rows, position]


def is_bert(model: PreTrainedModel) -> bool:
    """Tell whether a model is laid out as BERT's masked language model.

    Args:
        model: the model.

    Returns:
        True for BERT itself, not for its kin or a decoder.
    """
    return type(model) is BertForMaskedLM and not model.config.is_decoder


def _bert_logits(
    model: Any, ids: Int[Tensor, "rows length"], position: Int[Tensor, " rows"]
) -> Float[Tensor, "rows vocab"]:
    states = model.bert.embeddings(input_ids=ids)  # (rows, length, width)
    layers: list[Any] = list(model.bert.encoder.layer)
    for layer in layers[:-1]:
        states = layer(states)
    last = layers[-1]
    asked = states[torch.arange(len(ids), device=ids.device), position]  # (rows, width)
    attention = last.attention.self
    shape = (len(ids), -1, attention.num_attention_heads, attention.attention_head_size)
    context = F.scaled_dot_product_attention(
        attention.query(asked).view(shape).transpose(1, 2),
        attention.key(states).view(shape).transpose(1, 2),
        attention.value(states).view(shape).transpose(1, 2),
        scale=attention.scaling,
    )  # (rows, heads, 1, head width)
    attended = last.attention.output(context.reshape(asked.shape), asked)
    logits: Tensor = model.cls(last.feed_forward_chunk(attended))
    return logits
