"""Less time or memory for the same training: memory layout, compilation, checkpointing."""

import torch

from medclip_dcl.config.training import TrainConfig
from medclip_dcl.model.dual_encoder import DualEncoder
from medclip_dcl.model.view_encoder import ViewEncoder


def economise(encoder: DualEncoder | ViewEncoder, settings: TrainConfig) -> None:
    """Set a model up as the settings ask; names and values of its weights stay.

    Args:
        encoder: the model, before its first step.
        settings: layout, compilation and checkpointing.

    Raises:
        ConfigError: the image backbone cannot compute its activations twice.
    """
    text = encoder.text if isinstance(encoder, DualEncoder) else None
    if settings.channels_last:
        encoder.image.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if settings.gradient_checkpointing == "both":
        encoder.image.checkpoint_activations()
    if settings.gradient_checkpointing != "none" and text is not None:
        text.checkpoint_activations()
    if settings.compile_backend != "none":
        encoder.image.compile_layers(settings.compile_backend)
        if text is not None:
            text.compile_layers(settings.compile_backend)
