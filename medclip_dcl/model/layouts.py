"""Key layouts of ResNet checkpoints -> the keys of transformers' ResNet.

transformers   resnet.embedder..., resnet.encoder.stages.0.layers.1.layer.0...
torchvision    conv1, bn1, layer1.1.conv1, layer1.0.downsample.0, fc
BioViL         torchvision's below encoder.encoder., with its own projector beside
"""

import re
from collections.abc import Mapping

from torch import Tensor, nn

RESNET_HEADS = (
    "classifier.",
    "fc.",
    "projector.",
    "encoder.backbone_to_vit.",
    "encoder.vit_pooler.",
    "encoder.missing_previous_emb",
)
"""Prefixes of what is left aside: ImageNet's classes in two layouts, BioViL's projection, and
BioViL-T's comparison with an earlier film."""

_BIOVIL = "encoder.encoder."
_BLOCK = re.compile(r"layer(\d+)\.(\d+)\.(conv|bn)(\d+)\.(\w+)")
_SHORTCUT = re.compile(r"layer(\d+)\.(\d+)\.downsample\.([01])\.(\w+)")
_STEM = re.compile(r"(conv|bn)1\.(\w+)")
_KINDS = {"conv": "convolution", "bn": "normalization", "0": "convolution", "1": "normalization"}


def to_transformers(state: Mapping[str, Tensor]) -> tuple[str, dict[str, Tensor]]:
    """Name the weights of a ResNet checkpoint as transformers' backbone does.

    Args:
        state: weights by key, in one of the three layouts.

    Returns:
        Which layout it was, and the weights by the backbone's own keys. Keys of no layout
        stay as they are, so that they are counted as unexpected.
    """
    if any(key.startswith(_BIOVIL) for key in state):
        inner = {key.removeprefix(_BIOVIL): value for key, value in state.items()}
        return "biovil", {_from_torchvision(key): value for key, value in inner.items()}
    if "conv1.weight" in state:
        return "torchvision", {_from_torchvision(key): value for key, value in state.items()}
    return "transformers", {key.removeprefix("resnet."): value for key, value in state.items()}


def fold_to_grey(state: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Sum the channels of convolutions that see three of them where the module sees one.

    Args:
        state: weights by the module's own keys.
        module: the module that they are for.

    Returns:
        The weights; a grey film gives them what three equal channels gave before.
    """
    own = module.state_dict()
    return {
        key: value.sum(dim=1, keepdim=True)
        if value.ndim == 4 and value.shape[1] == 3 and key in own and own[key].shape[1] == 1
        else value
        for key, value in state.items()
    }


def _from_torchvision(key: str) -> str:
    if match := _STEM.fullmatch(key):
        kind, rest = match.groups()
        return f"embedder.embedder.{_KINDS[kind]}.{rest}"
    if match := _BLOCK.fullmatch(key):
        stage, block, kind, place, rest = match.groups()
        inside = f"layer.{int(place) - 1}.{_KINDS[kind]}.{rest}"
    elif match := _SHORTCUT.fullmatch(key):
        stage, block, place, rest = match.groups()
        inside = f"shortcut.{_KINDS[place]}.{rest}"
    else:
        return key
    return f"encoder.stages.{int(stage) - 1}.layers.{block}.{inside}"
