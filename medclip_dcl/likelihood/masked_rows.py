"""Logits of one masked position per row: any masked LM, and a shorter way through BERT.

A row asks for one position alone. BERT's last layer and its vocabulary head therefore
run on that position only; keys and values still come from the whole row.

Axes
    rows      masked copies of sentences of one length
    length    word pieces of a row
    vocab     the vocabulary
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import BertForMaskedLM, PreTrainedModel


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
    if type(model) is BertForMaskedLM and not model.config.is_decoder:
        return _bert_logits(model, ids, position)
    rows = torch.arange(len(ids), device=ids.device)
    logits: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    return logits[rows, position]


def _bert_logits(
    model: BertForMaskedLM, ids: Int[Tensor, "rows length"], position: Int[Tensor, " rows"]
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
