"""Any of transformers' backbones that gives a feature map, from its configuration alone."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import AutoBackbone, AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_BACKBONE_MAPPING_NAMES

from medclip_dcl.errors import ConfigError

BACKBONE_HEADS = ("classifier.", "pooler.", "layernorm.", "norm.", "head.")
"""Prefixes of heads and last norms that a classifier's checkpoint has beside its backbone."""

BACKBONE_FRESH = ("hidden_states_norms.",)
"""Prefixes of norms that a backbone adds to its maps, and that no classifier's file holds."""

_NEEDS_TIMM = ("timm_backbone",)
_REFUSALS = (TypeError, ValueError, KeyError, AttributeError, RuntimeError)


def build_map_backbone(tree: Mapping[str, Any], channels: int) -> nn.Module:
    """Build a backbone with random weights from torch's own generator.

    Args:
        tree: its configuration: `model_type`, and its sizes.
        channels: channels of the input.

    Returns:
        The backbone; its last map is that of its last stage.

    Raises:
        ConfigError: the type is unknown or needs timm, or a value does not fit.
    """
    fields = {name: value for name, value in tree.items() if name != "model_type"}
    kind = tree["model_type"]
    known = sorted(set(MODEL_FOR_BACKBONE_MAPPING_NAMES) - set(_NEEDS_TIMM))
    if kind not in known:
        raise ConfigError(
            f"model.image.backbone.model_type {kind} is no backbone of transformers; give one of "
            f"{', '.join(known)}"
        )
    try:
        config = AutoConfig.for_model(kind, **fields, num_channels=channels)
        backbone: nn.Module = AutoBackbone.from_config(config)  # type: ignore[no-untyped-call]
    except (*_REFUSALS, StrictDataclassError) as error:
        raise ConfigError(
            f"model.image.backbone: transformers refuses this configuration of {kind} "
            f"({type(error).__name__}); compare it with the config.json of a released one"
        ) from error
    return backbone


def last_map(backbone: nn.Module, pixels: Tensor) -> Tensor:
    """Run a backbone.

    Args:
        backbone: from `build_map_backbone`.
        pixels: normalised films, (images, channels_in, height, width).

    Returns:
        The map of its last stage, (images, channels, rows, columns).
    """
    features: Tensor = backbone(pixels).feature_maps[-1]
    return features


def map_shape(backbone: nn.Module, channels: int, input_px: int) -> tuple[int, int]:
    """Ask a backbone for the shape of its map, without computing it.

    Args:
        backbone: from `build_map_backbone`.
        channels: channels of the input.
        input_px: height and width of the input, pixels.

    Returns:
        Channels, and cells along one side.

    Raises:
        ConfigError: the backbone does not take inputs of that size.
    """
    shadow = copy.deepcopy(backbone).to("meta").eval()
    try:
        with torch.no_grad():
            shape = last_map(shadow, torch.zeros(1, channels, input_px, input_px, device="meta"))
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"this backbone takes no input of {input_px} pixels; set model.image.input_px to what "
            "its configuration names"
        ) from error
    return shape.shape[1], shape.shape[2]


def without_prefix(state: Mapping[str, Tensor], backbone: nn.Module) -> dict[str, Tensor]:
    """Drop what a classifier's checkpoint puts before its backbone's keys.

    Args:
        state: weights by key.
        backbone: the backbone that they are for.

    Returns:
        The weights, by the keys that fit the backbone best.
    """
    own = backbone.state_dict().keys()
    prefixes = ("", f"{backbone.base_model_prefix}.", "backbone.", "model.")
    named = [
        {key.removeprefix(prefix): value for key, value in state.items()} for prefix in prefixes
    ]
    return max(named, key=lambda tree: len(tree.keys() & own))
