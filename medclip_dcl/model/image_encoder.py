"""Image -> feature map: transformers' ResNet, grey or colour, with its own stem and start.

Other backbones of transformers stand behind the same class (`map_backbone`).
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import ResNetConfig, ResNetModel

from medclip_dcl.artifacts.foreign import read_tensors
from medclip_dcl.config.model import ImageEncoderConfig
from medclip_dcl.errors import ConfigError
from medclip_dcl.model.layouts import RESNET_HEADS, fold_to_grey, to_transformers
from medclip_dcl.model.map_backbone import (
    BACKBONE_FRESH,
    BACKBONE_HEADS,
    build_map_backbone,
    last_map,
    map_shape,
    without_prefix,
)
from medclip_dcl.model.weights import LoadReport, fill


class ImageEncoder(nn.Module):
    """A network that keeps the map and leaves pooling to the similarity.

    Attributes:
        kind: what the backbone is, as the config names it.
        width: channels of the feature map.
        stride: input pixels from one cell of a ResNet's map to the next.
    """

    def __init__(self, settings: ImageEncoderConfig) -> None:
        super().__init__()
        self._settings, self.kind = settings, settings.kind
        self._checkpointed = False
        if settings.kind == "backbone":
            self.backbone: Any = build_map_backbone(settings.backbone, settings.channels)
            self.width, cells = map_shape(self.backbone, settings.channels, settings.input_px)
            self.stride = math.ceil(settings.input_px / cells)
            return
        self.backbone = ResNetModel(_resnet_config(settings))
        self.width = settings.widths[-1]
        self.stride = 2 ** (len(settings.depths) - 1)
        if settings.stem == "cifar":
            stem = self.backbone.embedder.embedder
            channels = stem.convolution.out_channels
            stem.convolution = nn.Conv2d(
                settings.channels, channels, 3, stride=1, padding=1, bias=False
            )
            self.backbone.embedder.register_module("pooler", nn.Identity())
        else:
            self.stride *= 4

    def forward(
        self, pixels: Float[Tensor, "images channels_in height width"]
    ) -> Float[Tensor, "images channels rows columns"]:
        """Compute the feature map of each film.

        Args:
            pixels: normalised films, as `preprocessing.to_input` makes them.

        Returns:
            One map a film, of `grid(height)` by `grid(width)` cells. In memory it is
            channels-last where the weights are.
        """
        features: Tensor = self._map(pixels)
        return features

    def checkpoint_activations(self) -> None:
        """Compute the activations of each stage twice instead of keeping them.

        Raises:
            ConfigError: the backbone cannot.
        """
        self._checkpointed = True
        if self.kind != "backbone":
            return
        if not self.backbone.supports_gradient_checkpointing:
            raise ConfigError(
                "this image backbone keeps its activations; set train.gradient_checkpointing to "
                "text or none"
            )
        self.backbone.activation_checkpointing_enable({"use_reentrant": False})

    def compile_layers(self, backend: str) -> None:
        """Compile the backbone in place; keys of the weights stay.

        Args:
            backend: one of torch's compilers.
        """
        self._map = torch.compile(  # type: ignore[method-assign]
            self._map, dynamic=False, backend=backend
        )

    def grid(self, input_px: int) -> int:
        """Count the cells of the map along one side.

        Args:
            input_px: that side of the input, pixels.

        Returns:
            Cells; every halving of a ResNet rounds up.
        """
        if self.kind == "backbone":
            return map_shape(self.backbone, self._settings.channels, input_px)[1]
        return math.ceil(input_px / self.stride)

    def _map(self, pixels: Tensor) -> Tensor:
        if self.kind == "backbone":
            return last_map(self.backbone, pixels)
        features: Tensor = self.backbone.embedder(pixels)
        for stage in self.backbone.encoder.stages:
            if self._checkpointed and torch.is_grad_enabled():
                around = partial(_twice, stage)
                features = checkpoint(stage, features, use_reentrant=False, context_fn=around)
            else:
                features = stage(features)
        return features

    def initialise(self, generator: torch.Generator) -> None:
        """Draw fresh weights.

        Args:
            generator: CPU generator; the only source of randomness.

        Source: He et al. 2015, fan-out normal for convolutions; norms are identities.
            Other backbones as transformers starts them.
        """
        if self.kind == "backbone":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
                self.backbone = build_map_backbone(self._settings.backbone, self._settings.channels)
            return
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu", generator=generator
                )
            elif isinstance(module, nn.BatchNorm2d):
                module.reset_parameters()


def load_image_weights(encoder: ImageEncoder, path: Path) -> LoadReport:
    """Fill the backbone from a checkpoint, be it transformers', torchvision's or BioViL's.

    Args:
        encoder: encoder that receives the weights.
        path: safetensors or torch file, or a directory with one. A stem made for three
            channels is summed over them: a grey film is three equal ones.

    Returns:
        What was matched and what was left aside.

    Raises:
        CheckpointError: the file cannot be read, lacks a weight, has one of another
            shape, or holds keys that are neither the backbone's nor a known head's.
    """
    state = read_tensors(path)
    if encoder.kind == "backbone":
        named = fold_to_grey(without_prefix(state, encoder.backbone), encoder.backbone)
        return fill(encoder.backbone, named, BACKBONE_HEADS, BACKBONE_FRESH, "transformers")
    layout, named = to_transformers(state)
    return fill(
        encoder.backbone, fold_to_grey(named, encoder.backbone), RESNET_HEADS, layout=layout
    )


def _twice(stage: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Give what stands around the first and around the second computation of a stage."""
    return nullcontext(), _statistics_kept(stage)


@contextmanager
def _statistics_kept(stage: nn.Module) -> Iterator[None]:
    """Let batch norms see the batch without counting it once more."""
    norms = [item for item in stage.modules() if isinstance(item, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    counters = [norm.num_batches_tracked for norm in norms]
    counts = [None if counter is None else counter.clone() for counter in counters]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum, counter, count in zip(norms, momenta, counters, counts, strict=True):
            norm.momentum = momentum
            if counter is not None and count is not None:
                counter.copy_(count)


def _resnet_config(settings: ImageEncoderConfig) -> ResNetConfig:
    first = settings.widths[0]
    return ResNetConfig(
        num_channels=settings.channels,
        embedding_size=first if settings.layer == "basic" else first // 4,
        hidden_sizes=list(settings.widths),
        depths=list(settings.depths),
        layer_type=settings.layer,
    )
