"""Loss on items that do not train: same batches, same views, at every visit."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from accelerate import Accelerator
from torch import nn

from medclip_dcl.training.lesson import BatchT, Lesson, Model


@contextmanager
def evaluating(encoder: nn.Module) -> Iterator[None]:
    """Put a model into eval mode without gradients, then every part of it back into its own.

    Args:
        encoder: the model.

    Yields:
        Nothing.
    """
    modes = [(module, module.training) for module in encoder.modules()]
    encoder.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def validation_loss(
    accelerator: Accelerator,
    encoder: Model,
    contrast: Lesson[Model, BatchT],
    batches: Sequence[BatchT],
) -> dict[str, float]:
    """Measure the loss on validation batches; the model is left as it was.

    Args:
        accelerator: device, processes and precision.
        encoder: the model.
        contrast: the loss.
        batches: this process's part of the validation batches, at least one.

    Returns:
        `validation_loss`, of the configured objective, and
        `validation_uncorrected_loss`, InfoNCE; means over batches and processes.
    """
    losses = []
    with evaluating(encoder):
        for item in batches:
            batch = item.to(accelerator.device)
            output = contrast.read(encoder, encoder, batch)  # prepared: its forward is autocast
            losses.append(torch.stack([output.loss, output.gauges["uncorrected_loss"]]).float())
    mean = accelerator.reduce(torch.stack(losses).mean(dim=0), reduction="mean").tolist()
    return {"validation_loss": mean[0], "validation_uncorrected_loss": mean[1]}
