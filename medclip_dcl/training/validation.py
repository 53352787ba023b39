"""Loss on items that do not train: same batches, same views, at every visit."""

from collections.abc import Sequence

import torch
from accelerate import Accelerator

from medclip_dcl.config.training import TrainConfig
from medclip_dcl.training.lesson import BatchT, Lesson, Model
from medclip_dcl.training.step import set_training_mode


@torch.no_grad()
def validation_loss(
    accelerator: Accelerator,
    encoder: Model,
    contrast: Lesson[Model, BatchT],
    batches: Sequence[BatchT],
    settings: TrainConfig,
) -> dict[str, float]:
    """Measure the loss on validation batches; the model is left in training mode.

    Args:
        accelerator: device, processes and precision.
        encoder: the model.
        contrast: the loss.
        batches: this process's part of the validation batches, at least one.
        settings: the training loop.

    Returns:
        `validation_loss`, of the configured objective, and
        `validation_uncorrected_loss`, InfoNCE; means over batches and processes.
    """
    encoder.eval()
    losses = []
    for item in batches:
        batch = item.to(accelerator.device)
        output = contrast.read(encoder, encoder, batch)  # prepared: its forward is autocast
        losses.append(torch.stack([output.loss, output.gauges["uncorrected_loss"]]).float())
    set_training_mode(encoder, settings.freeze_batchnorm)
    mean = accelerator.reduce(torch.stack(losses).mean(dim=0), reduction="mean").tolist()
    return {"validation_loss": mean[0], "validation_uncorrected_loss": mean[1]}
