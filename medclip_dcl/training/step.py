"""One batch -> one update of the weights, or none where a number is not finite."""

from dataclasses import dataclass
from typing import Generic

import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from medclip_dcl.config.training import TrainConfig
from medclip_dcl.objective.build import ObjectiveOutput
from medclip_dcl.training.draws import Stream, seed_for
from medclip_dcl.training.lesson import BatchT, Lesson, Model
from medclip_dcl.training.optimizer import set_learning_rate
from medclip_dcl.training.parts import Part, freeze, frozen_parts, set_training_mode
from medclip_dcl.training.schedule import learning_rate_share


@dataclass(frozen=True)
class StepReport:
    """What a step came to; equal in all processes."""

    output: ObjectiveOutput
    """Loss and gauges of this process's anchors."""
    updated: bool
    """Whether the weights were moved."""
    stop: bool
    """Whether any process has been asked to stop."""


class TrainStep(Generic[Model, BatchT]):
    """Moves the weights, one batch at a time.

    Args:
        accelerator: device, processes and precision.
        encoder: the model, on its device.
        contrast: the loss.
        optimizer: moves the encoder's parameters.
        settings: the training loop.
        seed: seed of dropout.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        encoder: Model,
        contrast: Lesson[Model, BatchT],
        optimizer: Optimizer,
        settings: TrainConfig,
        seed: int,
    ) -> None:
        self._accelerator = accelerator
        self._encoder: Model = encoder
        self._contrast: Lesson[Model, BatchT] = contrast
        self._optimizer, self._settings, self._seed = optimizer, settings, seed
        self._wrapped: nn.Module | None = None
        self._stepper: Optimizer | None = None
        self._frozen: frozenset[Part] | None = None
        self._parameters = list(encoder.parameters())
        self._buffers = list(encoder.buffers())

    def __call__(self, batch: BatchT, stop: bool) -> StepReport:
        """Do one step.

        Args:
            batch: the batch, on any device.
            stop: whether this process has been asked to stop.

        Returns:
            What came of it. Where the loss or gradient of any process is not finite,
            weights, optimiser and norm statistics stay as they were.
        """
        self._hold(frozen_parts(self._settings, batch.step))
        batch = batch.to(self._accelerator.device)
        kept = [buffer.clone() for buffer in self._buffers]
        self._begin(batch.step)
        assert self._wrapped is not None
        assert self._stepper is not None
        output = self._contrast.read(self._wrapped, self._encoder, batch)
        self._accelerator.backward(output.loss)
        norm = self._accelerator.clip_grad_norm_(self._parameters, self._settings.clip_norm)
        broken, stop = self._agree(output.loss, norm, stop)
        if broken:
            self._restore(kept)
        if not broken or self._accelerator.scaler is not None:  # the scaler skips by itself
            self._stepper.step()
        self._stepper.zero_grad()
        self._encoder.clamp_gamma()
        return StepReport(output, not broken, stop)

    def _hold(self, frozen: frozenset[Part]) -> None:
        """Freeze and thaw; a distributed wrapper knows only what learned when it was made."""
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
        self._wrapped, self._stepper = self._accelerator.prepare(self._encoder, self._optimizer)

    def _begin(self, step: int) -> None:
        torch.manual_seed(
            seed_for(self._seed, Stream.DROPOUT, step, self._accelerator.process_index)
        )
        settings = self._settings
        share = learning_rate_share(step, settings.warmup_steps, settings.steps)
        set_learning_rate(self._optimizer, share)

    def _agree(self, loss: Float[Tensor, ""], norm: Tensor, stop: bool) -> tuple[bool, bool]:
        """Tell whether any process met a number that is not finite, or is to stop."""
        broken = ~(loss.detach().isfinite() & norm.isfinite())
        if self._accelerator.num_processes == 1:
            return bool(broken), stop
        flags = torch.stack([broken.float(), broken.new_tensor(stop).float()])
        either = self._accelerator.reduce(flags, reduction="sum")
        return bool(either[0] > 0), bool(either[1] > 0)

    @torch.no_grad()
    def _restore(self, kept: list[Tensor]) -> None:
        for buffer, old in zip(self._buffers, kept, strict=True):
            buffer.copy_(old)
