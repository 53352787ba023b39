"""AdamW: its schedule, the groups of parameters, which of them are frozen, and its saved state."""

import math
from collections.abc import Mapping
from enum import StrEnum

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.training.settings import TrainConfig


def learning_rate_share(step: int, warmup_steps: int, steps: int) -> float:
    """Return the share of the peak learning rate that a step, from 0, uses: in (0, 1].

    Linear warm-up, whose last step uses the peak, then cosine decay to 0. A pure function, so a
    resumed run has no schedule to restore.

    Source: Wang et al. 2023, Section 3.2 (warm-up, then cosine decay).
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    # A warm-up as long as the run has no decay after it: no division by zero.
    past = (step - warmup_steps) / max(1, steps - warmup_steps)
    return 0.5 * (1.0 + math.cos(math.pi * min(past, 1.0)))


class ParamGroup(StrEnum):
    """Group of a parameter: an encoder, the projections, or the scale."""

    IMAGE = "image"
    TEXT = "text"
    PROJECTION = "projection"
    SCALE = "scale"  # gamma, and what an objective of one's own adds; always learned


_PREFIXES = (
    ("text.projection.", ParamGroup.PROJECTION),
    ("region_projection.", ParamGroup.PROJECTION),
    ("image.", ParamGroup.IMAGE),
    ("text.", ParamGroup.TEXT),
)

_ADDED = ("cls_token", "class_embedding", "register_tokens", "position")
"""In the names of what vision transformers add to the features of patches: offsets, as biases."""


def param_group_of(name: str) -> ParamGroup:
    """Tell what a parameter or module belongs to, by its name in a `DualEncoder`."""
    groups = (group for prefix, group in _PREFIXES if f"{name}.".startswith(prefix))
    return next(groups, ParamGroup.SCALE)


def peak_learning_rate(name: str, settings: TrainConfig) -> float:
    """Return a parameter's peak: the text side's own, where it has one, else the common one."""
    is_text = name.startswith("text.")  # its map into the shared space, too
    return (is_text and settings.text_learning_rate) or settings.learning_rate


def frozen_groups(settings: TrainConfig) -> frozenset[ParamGroup]:
    """List what a run leaves as it is."""
    return frozenset(map(ParamGroup, settings.frozen))


def _adapted(encoder: nn.Module) -> set[str]:
    # Parameters in whose place adapters learn: they never do.
    names = [name for name, _ in encoder.named_parameters()]
    groups = {param_group_of(name) for name in names if ".lora_" in name}
    return {name for name in names if param_group_of(name) in groups and ".lora_" not in name}


def freeze(encoder: nn.Module, frozen: frozenset[ParamGroup]) -> None:
    """Let gradients reach all of a `DualEncoder` but the frozen groups; gamma is left alone.

    Of an encoder with adapters they reach these.
    """
    adapted_names = _adapted(encoder)
    for name, parameter in encoder.named_parameters():
        group = param_group_of(name)
        if group is not ParamGroup.SCALE:
            parameter.requires_grad_(group not in frozen and name not in adapted_names)


def set_training_mode(
    encoder: nn.Module, freeze_batchnorm: bool, frozen: frozenset[ParamGroup] = frozenset()
) -> None:
    """Put a `DualEncoder` into training mode, but its frozen groups: no dropout, no statistics.

    `freeze_batchnorm` keeps the statistics of all batch norms.
    """
    encoder.train()
    for name, module in encoder.named_modules():
        # Statistics of small batches are noise next to those that were loaded.
        held = freeze_batchnorm and isinstance(module, nn.modules.batchnorm._BatchNorm)
        # The nameless module is the model itself, whose flag `train` has set.
        if name and (held or param_group_of(name) in frozen):
            module.training = False


def build_optimizer(encoder: nn.Module, settings: TrainConfig) -> AdamW:
    """Build AdamW for what `freeze` lets learn, on its device; each group keeps its peak as `peak`.

    Biases, norms and gamma do not decay, nor do tokens and positions that a vision transformer
    adds to its patches.

    Source: Wang et al. 2023, Section 3.2 (AdamW); which weights decay is ours.
    """
    # Few groups: the fused update is one kernel for each.
    members: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in encoder.named_parameters():
        if parameter.requires_grad:
            peak = peak_learning_rate(name, settings)
            decay = settings.weight_decay if _decays(name, parameter) else 0.0
            members.setdefault((peak, decay), []).append(parameter)
    groups = [
        {"params": parameters, "lr": peak, "peak": peak, "weight_decay": decay}
        for (peak, decay), parameters in members.items()
    ]
    return AdamW(groups, fused=True)


def _decays(name: str, parameter: nn.Parameter) -> bool:
    added = param_group_of(name) is ParamGroup.IMAGE and any(word in name for word in _ADDED)
    return parameter.ndim > 1 and not added  # biases, norms and gamma have an axis at most


def set_learning_rate(optimizer: Optimizer, share: float) -> None:
    """Set the learning rate of the next step: a share, in [0, 1], of each group's peak."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * share


def optimizer_tensors(optimizer: Optimizer, encoder: nn.Module) -> dict[str, Tensor]:
    """Return the state, `<state>/<parameter>` -> tensor; empty before the first step."""
    return {
        f"{key}/{name}": value
        for name, parameter in encoder.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(
    optimizer: Optimizer, encoder: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Put back what `optimizer_tensors` gave; CheckpointError where it is of another model."""
    parameters = dict(encoder.named_parameters())
    for label, saved in tensors.items():
        key, _, name = label.partition("/")
        parameter = parameters.get(name)
        fits = parameter is not None and saved.shape in {parameter.shape, torch.Size([])}
        if parameter is None or not fits:
            raise CheckpointError(
                f"optimiser state {label} fits no parameter; remove the checkpoint"
            )
        # Same memory layout as the parameter, so that the update stays one fused pass.
        like = parameter if saved.shape == parameter.shape else saved
        optimizer.state[parameter][key] = torch.empty_like(
            like, device=parameter.device, dtype=saved.dtype
        ).copy_(saved)
