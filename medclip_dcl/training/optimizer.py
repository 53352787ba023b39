"""AdamW over named parameters, and its state as plain named tensors."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from medclip_dcl.config.training import TrainConfig
from medclip_dcl.errors import CheckpointError
from medclip_dcl.training.parts import Part, part_of, peak_learning_rate


def build_optimizer(encoder: nn.Module, settings: TrainConfig) -> AdamW:
    """Build the optimiser of a model.

    Args:
        encoder: the model, on its device, some parts of it frozen or none.
        settings: learning rates and weight decay.

    Returns:
        AdamW. Biases, norms and gamma do not decay; each part may have its own peak
        learning rate. Each group keeps its peak under `peak`.

    Source: Wang et al. 2023, Section 3.2 (AdamW); which weights decay is ours.
    """
    members: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in encoder.named_parameters():
        if parameter.requires_grad or part_of(name) is not Part.SCALE:  # frozen ones may thaw
            peak = peak_learning_rate(name, settings)
            decay = settings.weight_decay if parameter.ndim > 1 else 0.0
            members.setdefault((peak, decay), []).append(parameter)
    groups = [
        {"params": parameters, "lr": peak, "peak": peak, "weight_decay": decay}
        for (peak, decay), parameters in members.items()
    ]
    return AdamW(groups, fused=True)


def set_learning_rate(optimizer: Optimizer, share: float) -> None:
    """Set the learning rate of the next step.

    Args:
        optimizer: from `build_optimizer`.
        share: share of each group's peak, in [0, 1].
    """
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * share


def optimizer_tensors(optimizer: Optimizer, encoder: nn.Module) -> dict[str, Tensor]:
    """Name every tensor of the optimiser's state.

    Args:
        optimizer: from `build_optimizer`.
        encoder: the model whose parameters it moves.

    Returns:
        `<state>/<parameter>` -> tensor; empty before the first step.
    """
    return {
        f"{key}/{name}": value
        for name, parameter in encoder.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(
    optimizer: Optimizer, encoder: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Put a saved state back.

    Args:
        optimizer: from `build_optimizer`, for an equal model.
        encoder: the model whose parameters it moves.
        tensors: from `optimizer_tensors`.

    Raises:
        CheckpointError: a tensor is of no parameter, or of another shape.
    """
    parameters = dict(encoder.named_parameters())
    for label, saved in tensors.items():
        key, _, name = label.partition("/")
        parameter = parameters.get(name)
        fits = parameter is not None and saved.shape in {parameter.shape, torch.Size([])}
        if parameter is None or not fits:
            raise CheckpointError(f"optimiser state {label} fits no parameter; begin anew")
        # Same memory layout as the parameter, so that the update stays one fused pass.
        like = parameter if saved.shape == parameter.shape else saved
        optimizer.state[parameter][key] = torch.empty_like(
            like, device=parameter.device, dtype=saved.dtype
        ).copy_(saved)
