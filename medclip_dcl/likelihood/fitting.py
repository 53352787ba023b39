"""Fitting of a masked language model to the corpus, resumable and the same for one seed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import BertForMaskedLM

from medclip_dcl.config.text import LanguageModelConfig
from medclip_dcl.errors import TrainingError
from medclip_dcl.likelihood.corpus import NOT_ASKED, Corpus, MaskedBatch

_CLIP_NORM = 1.0
_DRAWS = 4  # lengths in one step: more would make small matrices, fewer a noisier step


@dataclass
class FitState:
    """Where a fit stands: everything that the next step depends on."""

    step: int
    tensors: Mapping[str, Tensor]


def fit_model(
    model: BertForMaskedLM,
    corpus: Corpus,
    settings: LanguageModelConfig,
    seed: int,
    *,
    start: FitState | None = None,
    after_step: Callable[[int, float, Callable[[], FitState]], None] | None = None,
) -> None:
    """Train a masked language model in place with AdamW, warm-up and linear decay.

    What a step draws depends on seed and step alone, so a fit that goes on from a state
    ends with the weights of an uninterrupted one.

    Args:
        model: the model; it stays on its device.
        corpus: the sentences.
        settings: steps, batch, learning rate, share of masks.
        seed: seed of sentences, masks and dropout.
        start: state to go on from; None: from the model as it is.
        after_step: told the number of finished steps, the loss in nats, and a function
            that gives the state.

    Raises:
        TrainingError: the loss is no finite number.

    Source: Devlin et al. 2019, Appendix A.2.
    """
    optimizer = _optimizer(model, settings)
    first = 0
    if start is not None:
        first = start.step
        _restore(model, optimizer, start)
    model.train()
    with torch.random.fork_rng(devices=_devices(model)):
        for step in range(first, settings.steps):
            generator = torch.Generator().manual_seed(_step_seed(seed, step))
            torch.manual_seed(_step_seed(seed, step))  # dropout draws from the global state
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * _decay(step, settings)
            loss = _step(model, optimizer, corpus, settings, generator)
            if after_step is not None:
                after_step(step + 1, loss, partial(_state, model, optimizer, step + 1))
    model.train(False)


@torch.inference_mode()
def masked_accuracy(
    model: BertForMaskedLM, corpus: Corpus, mask_share: float, batch: int, seed: int
) -> dict[str, float]:
    """Measure how well masked word pieces are restored.

    Args:
        model: the model; it is left in eval mode.
        corpus: sentences that it was not fitted to.
        mask_share: share of word pieces that are predicted.
        batch: sentences in one forward pass.
        seed: seed of the masks.

    Returns:
        `held_out_accuracy`, `held_out_nats` per piece, and `held_out_pieces` asked.
    """
    model.train(False)
    generator = torch.Generator().manual_seed(seed)
    right = asked = 0
    nats = 0.0
    for masked in corpus.all_once(batch, mask_share, generator):
        logits, labels = _predict(model, masked)
        right += int((logits.argmax(-1) == labels).sum())
        nats += float(F.cross_entropy(logits, labels, reduction="sum"))
        asked += len(labels)
    return {
        "held_out_accuracy": right / asked,
        "held_out_nats": nats / asked,
        "held_out_pieces": asked,
    }


def _step(
    model: BertForMaskedLM,
    optimizer: torch.optim.Optimizer,
    corpus: Corpus,
    settings: LanguageModelConfig,
    generator: torch.Generator,
) -> float:
    """Take one optimiser step over a few draws of one length each."""
    rows = -(-settings.batch // _DRAWS)
    batches = [corpus.draw(rows, settings.mask_share, generator) for _ in range(_DRAWS)]
    asked = sum(int((batch.labels != NOT_ASKED).sum()) for batch in batches)
    total = 0.0
    optimizer.zero_grad(set_to_none=True)
    for batch in batches:
        logits, labels = _predict(model, batch)
        loss = F.cross_entropy(logits, labels, reduction="sum") / asked
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP_NORM)
    if not bool(torch.isfinite(norm)):
        raise TrainingError("the language model's gradient is no number; lower its learning_rate")
    optimizer.step()
    return total


def _predict(model: BertForMaskedLM, batch: MaskedBatch) -> tuple[Tensor, Tensor]:
    """Run all but attention of the last layer, and the vocabulary head, where it is asked."""
    ids, labels = batch.ids.to(model.device), batch.labels.to(model.device)
    asked = labels != NOT_ASKED
    states = model.bert.embeddings(input_ids=ids)  # (rows, length, width)
    layers: list[Any] = list(model.bert.encoder.layer)
    for layer in layers[:-1]:
        states = layer(states)
    last = layers[-1]
    context = last.attention.self(states)[0]
    attended = last.attention.output(context[asked], states[asked])  # (asked, width)
    return model.cls(last.feed_forward_chunk(attended)), labels[asked]


def _optimizer(model: BertForMaskedLM, settings: LanguageModelConfig) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98), foreach=True)


def _decay(step: int, settings: LanguageModelConfig) -> float:
    """Give the share of the peak learning rate that a step uses."""
    warmup = max(1, round(settings.warmup_share * settings.steps))
    return min((step + 1) / warmup, (settings.steps - step) / max(1, settings.steps - warmup))


def _step_seed(seed: int, step: int) -> int:
    return (seed * 1_000_003 + step) % (1 << 62)


def _devices(model: BertForMaskedLM) -> list[torch.device]:
    return [model.device] if model.device.type == "cuda" else []


def _state(model: BertForMaskedLM, optimizer: torch.optim.AdamW, step: int) -> FitState:
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors[f"weight/{name}"] = parameter.detach()
        for moment in ("exp_avg", "exp_avg_sq"):
            tensors[f"{moment}/{name}"] = optimizer.state[parameter][moment]
    return FitState(step, tensors)


def _restore(model: BertForMaskedLM, optimizer: torch.optim.AdamW, state: FitState) -> None:
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            parameter.copy_(state.tensors[f"weight/{name}"])
        optimizer.state[parameter] = {
            "step": torch.tensor(float(state.step)),
            **{
                moment: state.tensors[f"{moment}/{name}"].to(parameter.device).clone()
                for moment in ("exp_avg", "exp_avg_sq")
            },
        }
