"""Image -> feature map: transformers' ResNet, grey or colour, with its own stem and start."""

import math
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import ResNetConfig, ResNetModel

from medclip_dcl.config.model import ImageEncoderConfig
from medclip_dcl.model.weights import LoadReport, fill, read_weights

_HEADS = ("classifier.",)
_STEM = "embedder.embedder.convolution.weight"


class ImageEncoder(nn.Module):
    """A residual network that keeps the map and leaves pooling to the similarity.

    Attributes:
        width: channels of the feature map.
        stride: input pixels from one cell of the map to the next.
    """

    def __init__(self, settings: ImageEncoderConfig) -> None:
        super().__init__()
        self.backbone = ResNetModel(_resnet_config(settings))
        self.width = settings.widths[-1]
        self.stride: int = 2 ** (len(settings.depths) - 1)
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
        features: Tensor = self.backbone.encoder(self.backbone.embedder(pixels))[0]
        return features

    def grid(self, input_px: int) -> int:
        """Count the cells of the map along one side.

        Args:
            input_px: that side of the input, pixels.

        Returns:
            Cells; every halving rounds up.
        """
        return math.ceil(input_px / self.stride)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw fresh weights.

        Args:
            generator: CPU generator; the only source of randomness.

        Source: He et al. 2015, fan-out normal for convolutions; norms are identities.
        """
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu", generator=generator
                )
            elif isinstance(module, nn.BatchNorm2d):
                module.reset_parameters()


def load_image_weights(encoder: ImageEncoder, path: Path) -> LoadReport:
    """Fill the backbone from a ResNet checkpoint in transformers' key layout.

    Args:
        encoder: encoder that receives the weights.
        path: safetensors file, or a directory with `model.safetensors`. A stem made
            for three channels is summed over them: a grey film is three equal ones.

    Returns:
        What was matched and what was left aside.

    Raises:
        CheckpointError: the file cannot be read, lacks a weight, has one of another
            shape, or holds keys that are neither ResNet's nor its classifier's.
    """
    state = {key.removeprefix("resnet."): value for key, value in read_weights(path).items()}
    stem = state.get(_STEM)
    own = encoder.backbone.embedder.embedder.convolution.in_channels
    if stem is not None and stem.ndim == 4 and stem.shape[1] == 3 and own == 1:
        state[_STEM] = stem.sum(dim=1, keepdim=True)
    return fill(encoder.backbone, state, heads=_HEADS)


def _resnet_config(settings: ImageEncoderConfig) -> ResNetConfig:
    first = settings.widths[0]
    return ResNetConfig(
        num_channels=settings.channels,
        embedding_size=first if settings.layer == "basic" else first // 4,
        hidden_sizes=list(settings.widths),
        depths=list(settings.depths),
        layer_type=settings.layer,
    )
