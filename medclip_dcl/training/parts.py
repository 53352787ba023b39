"""Parts of a model that have a learning rate of their own and may stay frozen for a while."""

from enum import StrEnum

from torch import nn

from medclip_dcl.config.training import TrainConfig


class Part(StrEnum):
    """What a parameter belongs to."""

    IMAGE = "image"
    TEXT = "text"
    PROJECTION = "projection"
    SCALE = "scale"
    """Gamma; it is never frozen here, its config decides."""


_PREFIXES = (
    ("text.projection.", Part.PROJECTION),
    ("region_projection.", Part.PROJECTION),
    ("head.", Part.PROJECTION),
    ("image.", Part.IMAGE),
    ("text.", Part.TEXT),
    ("gamma", Part.SCALE),
)


def part_of(name: str) -> Part:
    """Say which part a parameter or module belongs to.

    Args:
        name: its name in a `DualEncoder` or `ViewEncoder`.

    Returns:
        The part.
    """
    return next(part for prefix, part in _PREFIXES if f"{name}.".startswith(prefix))


def peak_learning_rate(name: str, settings: TrainConfig) -> float:
    """Give the peak learning rate of a parameter.

    Args:
        name: its name in a `DualEncoder` or `ViewEncoder`.
        settings: learning rates.

    Returns:
        The rate of its part, else that of the encoder it belongs to, else the common one.
    """
    own = {
        Part.IMAGE: settings.image_learning_rate,
        Part.TEXT: settings.text_learning_rate,
        Part.PROJECTION: settings.projection_learning_rate,
        Part.SCALE: None,
    }
    part = part_of(name)
    rate = own[part]
    if part is Part.PROJECTION and rate is None:
        rate = own[Part.TEXT if name.startswith("text.") else Part.IMAGE]
    return rate or settings.learning_rate


def frozen_parts(settings: TrainConfig, step: int) -> frozenset[Part]:
    """Say which parts a step leaves as they are.

    Args:
        settings: how long each part is frozen.
        step: the step, from 0.

    Returns:
        The parts; a pure function of the step, so a resumed run freezes the same.
    """
    until = {
        Part.IMAGE: settings.image_frozen_steps,
        Part.TEXT: settings.text_frozen_steps,
        Part.PROJECTION: settings.projection_frozen_steps,
    }
    return frozenset(part for part, steps in until.items() if step < steps)


def freeze(encoder: nn.Module, frozen: frozenset[Part]) -> None:
    """Let gradients reach all parts but the frozen ones; gamma is left alone.

    Args:
        encoder: a `DualEncoder` or `ViewEncoder`.
        frozen: parts that stay as they are.
    """
    for name, parameter in encoder.named_parameters():
        part = part_of(name)
        if part is not Part.SCALE:
            parameter.requires_grad_(part not in frozen)


def set_training_mode(
    encoder: nn.Module, freeze_batchnorm: bool, frozen: frozenset[Part] = frozenset()
) -> None:
    """Put a model into training mode.

    Args:
        encoder: a `DualEncoder` or `ViewEncoder`.
        freeze_batchnorm: keep the statistics of batch norms.
        frozen: parts that stay as they are: no dropout, no statistics.
    """
    encoder.train()
    for name, module in encoder.named_modules():
        is_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
        held = freeze_batchnorm and is_norm
        if name and (held or part_of(name) in frozen):
            module.training = False
