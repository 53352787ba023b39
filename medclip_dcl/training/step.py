"""One optimiser step: gradients, clipping, and a restore where a number is not finite."""

from dataclasses import dataclass

import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from medclip_dcl.core.rng import RngStream, seed_for
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.training.dataset import ImageTextBatch
from medclip_dcl.training.objective import ContrastiveObjective, ObjectiveOutput
from medclip_dcl.training.optim import (
    ParamGroup,
    build_optimizer,
    freeze,
    frozen_groups,
    learning_rate_share,
    set_learning_rate,
    set_training_mode,
)
from medclip_dcl.training.settings import TrainConfig

CLIP_NORM = 1.0
"""Largest gradient norm: above it one batch would undo what the warm-up protects. Ours: neither
paper clips, and an anchor's gradient weighs up to 1 / (1 - eta) and more (`debiased`)."""


@dataclass(frozen=True)
class StepReport:
    """Loss and gauges of a step; equal in all processes."""

    output: ObjectiveOutput
    """Loss and gauges of this process's anchors."""
    updated: bool
    """Whether the weights were moved."""
    norm: float
    """Length of the gradient before it was clipped."""
    stop: bool
    """Whether any process has been asked to stop."""


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
        if settings.chunk:
            from medclip_dcl.training.grad_cache import refuse_learning_norms

            refuse_learning_norms(encoder, settings)
        configure_performance(encoder, settings)
        self._accelerator, self._settings, self._seed = accelerator, settings, seed
        self._encoder = encoder.to(accelerator.device)
        self._objective = objective
        self.optimizer = build_optimizer(encoder, settings)
        self._wrapped: nn.Module | None = None
        self._stepper: Optimizer | None = None
        self._frozen: frozenset[ParamGroup] | None = None
        self._parameters = list(encoder.parameters())
        self._buffers = list(encoder.buffers())

    def __call__(self, batch: ImageTextBatch, stop: bool) -> StepReport:
        """Do one step; `stop`: this process has been asked to stop.

        Where the loss or gradient of any process is not finite, weights, optimiser and norm
        statistics stay as they were.
        """
        settings = self._settings
        self._hold(frozen_groups(settings, batch.step))
        batch = batch.to(self._accelerator.device)
        # Norm statistics move in the forward pass, before anyone knows whether the step is good.
        buffers = [buffer.clone() for buffer in self._buffers]
        share = learning_rate_share(batch.step, settings.warmup_steps, settings.total_steps)
        set_learning_rate(self.optimizer, share)
        assert self._wrapped is not None
        assert self._stepper is not None
        output = self._backward(self._wrapped, batch)
        norm = self._accelerator.clip_grad_norm_(self._parameters, CLIP_NORM)
        broken, stop = self._agree(output.loss, norm, stop)
        if broken:
            self._restore(buffers)
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
            from medclip_dcl.training.grad_cache import backward_in_chunks

            parts = range(-(-len(batch.crops) // chunk))
            seeds = [seed_for(self._seed, RngStream.DROPOUT, *position, part) for part in parts]
            return backward_in_chunks(
                *(self._accelerator, network, self._encoder, self._objective, batch, chunk), seeds
            )
        torch.manual_seed(seed_for(self._seed, RngStream.DROPOUT, *position))
        output = self._objective.compute_loss(network, self._encoder, batch)
        self._accelerator.backward(output.loss)
        return output

    def _hold(self, frozen: frozenset[ParamGroup]) -> None:
        # Freeze and thaw; a distributed wrapper knows only what learned when it was made.
        if frozen == self._frozen:
            return
        self._frozen = frozen
        freeze(self._encoder, frozen)
        set_training_mode(self._encoder, self._settings.freeze_batchnorm, frozen)
        if self._wrapped is self._encoder:
            return
        if self._wrapped is not None:
            self._accelerator.unwrap_model(self._wrapped, keep_fp32_wrapper=False)
            self._wrapped = self._stepper = None
            self._accelerator.free_memory()
        self._wrapped, self._stepper = self._accelerator.prepare(self._encoder, self.optimizer)

    def _agree(self, loss: Float[Tensor, ""], norm: Tensor, stop: bool) -> tuple[bool, bool]:
        # Whether any process met a number that is not finite, or is to stop: all do the same.
        broken = ~(loss.detach().isfinite() & norm.isfinite())
        if self._accelerator.num_processes == 1:
            return bool(broken), stop
        flags = torch.stack([broken.float(), broken.new_tensor(stop).float()])
        either = self._accelerator.reduce(flags, reduction="sum")
        return bool(either[0] > 0), bool(either[1] > 0)

    @torch.no_grad()
    def _restore(self, buffers: list[Tensor]) -> None:
        for buffer, old in zip(self._buffers, buffers, strict=True):
            buffer.copy_(old)


def configure_performance(encoder: DualEncoder, settings: TrainConfig) -> None:
    """Set a model up as the settings ask; names and values of its weights stay."""
    # Convolutions are faster in this layout, on a CPU and on a GPU; torch's stubs lack the keyword.
    encoder.image.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if settings.gradient_checkpointing == "both":
        encoder.image.checkpoint_activations()
    if settings.gradient_checkpointing != "none":
        encoder.text.checkpoint_activations()
