"""Gradients of a contrastive batch whose activations would not fit: encoded chunk by chunk.

    1  every chunk is encoded without activations; its regions and sentences are kept
    2  the loss of the whole batch on these gives their gradients, which are kept in their place
    3  every chunk is encoded again, with activations, and takes its gradients on into the weights

One process thus holds the activations of a chunk, whatever the batch; the gradient is that of the
plain step, for any loss of regions and sentences. Dropout is drawn by the position of the chunk,
so both passes drop the same. Batch norms that learn would see a chunk in place of the batch, and
are refused.

Source: Gao et al. 2021 (GradCache), for vectors; regions, and scores in blocks, are ours.
"""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.training.dataset import ImageTextBatch
from medclip_dcl.training.objective import ContrastiveObjective, ObjectiveOutput
from medclip_dcl.training.optim import learning_norms
from medclip_dcl.training.settings import TrainConfig


def refuse_learning_norms(encoder: nn.Module, settings: TrainConfig) -> None:
    """Raise ConfigError where batch norms would learn from each chunk of a batch."""
    names = learning_norms(encoder, settings)
    if names:
        raise ConfigError(
            f"train.chunk is {settings.chunk}, and the batch norms of the model ({names[0]} and "
            f"{len(names) - 1} more) would see a chunk in place of the batch; set "
            "train.freeze_batchnorm to true, with weights that are loaded, or train.chunk to 0"
        )


def backward_in_chunks(
    accelerator: Accelerator,
    network: nn.Module,
    encoder: DualEncoder,
    objective: ContrastiveObjective,
    batch: ImageTextBatch,
    chunk: int,
    seeds: Sequence[int],
) -> ObjectiveOutput:
    """Compute the loss of a batch and add its gradient to the weights', as a plain step does.

    `network` is what is called, the encoder or its distributed wrapper; `seeds` are those of
    dropout, one for each chunk.
    """
    chunks = batch.in_chunks(chunk)
    encoded = []
    with torch.no_grad():
        for seed, part in zip(seeds, chunks, strict=True):
            torch.manual_seed(seed)
            encoded.append(objective.encode(network, part))
    regions, sentences = (torch.cat(side).requires_grad_() for side in zip(*encoded, strict=True))
    del encoded
    output = objective(encoder, regions, sentences, batch)
    accelerator.backward(output.loss)
    gradients = [item.grad for item in (regions, sentences)]
    del regions, sentences
    start = 0
    for number, part in enumerate(chunks):
        stop = start + len(part.crops)
        is_last = number == len(chunks) - 1
        # Gradients are averaged over processes once, when the last chunk has added its own.
        with nullcontext() if is_last else accelerator.no_sync(network):
            torch.manual_seed(seeds[number])
            outputs = list(objective.encode(network, part))
            slopes = [None if item is None else item[start:stop] for item in gradients]
            if is_last:
                _add_scale(encoder, outputs, slopes)
            torch.autograd.backward(outputs, slopes)
        start = stop
    return output


def _add_scale(encoder: DualEncoder, outputs: list[Tensor], slopes: list[Tensor | None]) -> None:
    # Gamma has its gradient from the loss, and no encoder calls it: without a part in this backward
    # pass the distributed wrapper would wait for it.
    if encoder.gamma.requires_grad:
        outputs.append(encoder.gamma * 1)
        slopes.append(torch.zeros_like(encoder.gamma))
