"""Low-rank adapters: W x + 2 B A x, where A and B learn and W stays.

B starts as zeros, so that training starts at the encoder's own answers. A published model holds
W + 2 B A under the key of W, and needs no peft.

Source: Hu et al. 2022, Section 4.1; the factor alpha / r of 2 is the usual choice.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor, nn

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.models.dual_encoder import DualEncoder

_SCALE = 2
_BASE, _DOWN, _UP = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"


def add_adapters(
    encoder: DualEncoder, ranks: Mapping[Literal["image", "text"], int], seed: int
) -> int:
    """Put adapters into the linear layers of encoders that have their weights already.

    Args:
        encoder: the model, changed in place.
        ranks: `image` or `text`, or both -> rank.
        seed: that of A; the global generator is left alone.

    Returns:
        Linear layers that have one.

    Raises:
        ConfigError: peft is missing, or an encoder has no such layer.
    """
    if find_spec("peft") is None:
        raise ConfigError("model.lora needs peft; run pip install '.[lora]' in the checkout")
    peft, count = import_module("peft"), 0
    for name, rank in sorted(ranks.items()):
        backbone = getattr(encoder, name).backbone
        layers = [
            key
            for key, module in backbone.named_modules()
            # Subclasses are used by their weight alone, as in torch's attention.
            if type(module) is nn.Linear
        ]
        if not layers:
            raise ConfigError(
                f"the {name} encoder has no linear layer; name the other one in model.lora"
            )
        config = peft.LoraConfig(
            r=rank,
            lora_alpha=_SCALE * rank,
            target_modules=layers,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            peft.inject_adapter_in_model(config, backbone)
        count += len(layers)
    return count


def merged(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Merge adapters into the weights that they stand next to; others stay."""
    plain = {}
    for key, value in weights.items():
        if ".lora_" in key:
            continue
        name, base, part = key.partition(_BASE)
        if base and part == "weight":
            down, up = weights[f"{name}{_DOWN}"], weights[f"{name}{_UP}"]
            value = value + _SCALE * (up @ down)
        plain[f"{name}.{part}" if base else key] = value
    return plain
