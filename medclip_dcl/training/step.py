"""One optimiser step: gradients, clipping, and a restore where a number is not finite.

A batch whose activations would not fit is encoded chunk by chunk (`train.chunk`):

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
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.rng import RngStream, seed_for
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.training import optim
from medclip_dcl.training.dataset import ImageTextBatch
from medclip_dcl.training.objective import ContrastiveObjective, ObjectiveOutput
from medclip_dcl.training.settings import TrainConfig

CLIP_NORM = 1.0
"""Largest gradient norm: above it one batch would undo what the warm-up protects. Ours: neither
paper clips, and an anchor's gradient weighs up to 1 / (1 - eta) and more (`debiased`)."""


@dataclass(frozen=True)
class StepReport:
    """Loss and gauges of a step; equal in all processes."""

    output: ObjectiveOutput  # loss and gauges of this process's anchors
    updated: bool  # whether the weights were moved
    norm: float  # length of the gradient before it was clipped
    stop: bool  # whether any process has been asked to stop


class TrainStep:
    """Moves the weights of a model, one batch at a time; `seed` is that of dropout."""

    def __init__(
        self,
        accelerator: Accelerator,
        encoder: DualEncoder,
        objective: ContrastiveObjective,
        settings: TrainConfig,
        seed: int,
    ) -> None:
        # Convolutions are faster in this layout, on CPU and GPU; torch's stubs lack the keyword.
        encoder.image.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._accelerator, self._settings, self._seed = accelerator, settings, seed
        self._encoder = encoder.to(accelerator.device)
        self._objective = objective
        frozen = optim.frozen_groups(settings)
        # Before it is wrapped, as a wrapper waits for all that learns.
        optim.freeze(encoder, frozen)
        optim.set_training_mode(encoder, settings.freeze_batchnorm, frozen)
        if settings.chunk:
            _refuse_learning_norms(encoder, settings)
        self.optimizer = optim.build_optimizer(encoder, settings)
        self._wrapped: nn.Module
        self._stepper: Optimizer
        self._wrapped, self._stepper = accelerator.prepare(encoder, self.optimizer)
        self._parameters = list(encoder.parameters())
        self._buffers = list(encoder.buffers())

    def __call__(self, batch: ImageTextBatch, stop: bool) -> StepReport:
        """Do one step, or, where a loss or gradient is not finite, leave all as it was."""
        settings = self._settings
        batch = batch.to(self._accelerator.device)
        # Norm statistics move in the forward pass, before anyone knows whether the step is good.
        buffers = [buffer.clone() for buffer in self._buffers]
        share = optim.learning_rate_share(batch.step, settings.warmup_steps, settings.total_steps)
        optim.set_learning_rate(self.optimizer, share)
        output = self._backward(self._wrapped, batch)
        norm = self._accelerator.clip_grad_norm_(self._parameters, CLIP_NORM)
        broken, stop = self._agree(output.loss, norm, stop)
        if broken:
            with torch.no_grad():
                for buffer, old in zip(self._buffers, buffers, strict=True):
                    buffer.copy_(old)
        if not broken or self._accelerator.scaler is not None:  # the scaler skips by itself
            self._stepper.step()
        self._stepper.zero_grad()
        self._encoder.clamp_gamma()
        return StepReport(output, not broken, norm.item(), stop)

    def _backward(self, network: nn.Module, batch: ImageTextBatch) -> ObjectiveOutput:
        # Dropout is drawn by step, process and chunk: a resumed run drops what the one that was not
        # stopped would have dropped.
        chunk, position = self._settings.chunk, (batch.step, self._accelerator.process_index)
        if 0 < chunk < len(batch.crops):
            parts = range(-(-len(batch.crops) // chunk))  # the last one may be smaller
            seeds = [seed_for(self._seed, RngStream.DROPOUT, *position, part) for part in parts]
            return backward_in_chunks(
                *(self._accelerator, network, self._encoder, self._objective, batch, chunk), seeds
            )
        torch.manual_seed(seed_for(self._seed, RngStream.DROPOUT, *position))
        output = self._objective.compute_loss(network, self._encoder, batch)
        self._accelerator.backward(output.loss)
        return output

    def _agree(self, loss: Float[Tensor, ""], norm: Tensor, stop: bool) -> tuple[bool, bool]:
        # Whether any process met a number that is not finite, or is to stop: all do the same.
        broken = ~(loss.detach().isfinite() & norm.isfinite())
        if self._accelerator.num_processes == 1:
            return bool(broken), stop
        flags = torch.stack([broken.float(), broken.new_tensor(stop).float()])
        either = self._accelerator.reduce(flags, reduction="sum")
        return bool(either[0] > 0), bool(either[1] > 0)


def _refuse_learning_norms(encoder: nn.Module, settings: TrainConfig) -> None:
    # Of an encoder in training mode: those of frozen parts, or frozen ones, are in eval mode.
    names = [
        name
        for name, module in encoder.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
    ]
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
            # Gamma has its gradient from the loss, and no encoder calls it: without a part in this
            # backward pass the distributed wrapper would wait for it.
            if is_last and encoder.gamma.requires_grad:
                outputs.append(encoder.gamma * 1)
                slopes.append(torch.zeros_like(encoder.gamma))
            torch.autograd.backward(outputs, slopes)
        start = stop
    return output
