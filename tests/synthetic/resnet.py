"""A ResNet as torchvision names its weights, in plain functions: the oracle of key layouts.

`torchvision_weights` draws a checkpoint, `torchvision_map` computes the last map from it by
the text of He et al. 2016 and torchvision's two changes (stride in the 3x3 convolution of a
bottleneck, no bias in convolutions).
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from medclip_dcl.models.settings import ImageEncoderConfig

Weights = dict[str, Tensor]


def torchvision_weights(settings: ImageEncoderConfig, channels: int = 3) -> Weights:
    """Draw weights of every size that a config can name; the head has ten classes."""
    generator = torch.Generator().manual_seed(0)
    state: Weights = {}

    def convolve(name: str, inputs: int, outputs: int, size: int) -> None:
        spread = (2 / (inputs * size * size)) ** 0.5
        state[name] = torch.randn(outputs, inputs, size, size, generator=generator) * spread

    def norm(name: str, width: int) -> None:
        for part, low, high in (("weight", 0.5, 1.5), ("bias", -0.5, 0.5)):
            state[f"{name}.{part}"] = torch.empty(width).uniform_(low, high, generator=generator)
        for part, low, high in (("running_mean", -0.5, 0.5), ("running_var", 0.5, 1.5)):
            state[f"{name}.{part}"] = torch.empty(width).uniform_(low, high, generator=generator)
        state[f"{name}.num_batches_tracked"] = torch.tensor(7)

    bottleneck = settings.layer == "bottleneck"
    width = settings.widths[0] // (4 if bottleneck else 1)
    convolve("conv1.weight", channels, width, 7)
    norm("bn1", width)
    for stage, (depth, out) in enumerate(zip(settings.depths, settings.widths, strict=True), 1):
        for block in range(depth):
            name, inner = f"layer{stage}.{block}", out // 4
            sizes = [(width, inner, 1), (inner, inner, 3), (inner, out, 1)]
            if not bottleneck:
                sizes = [(width, out, 3), (out, out, 3)]
            for index, (inputs, outputs, size) in enumerate(sizes, 1):
                convolve(f"{name}.conv{index}.weight", inputs, outputs, size)
                norm(f"{name}.bn{index}", outputs)
            if width != out or (stage > 1 and block == 0):
                convolve(f"{name}.downsample.0.weight", width, out, 1)
                norm(f"{name}.downsample.1", out)
            width = out
    state["fc.weight"], state["fc.bias"] = torch.zeros(10, width), torch.zeros(10)
    return state


def torchvision_map(
    state: Mapping[str, Tensor], settings: ImageEncoderConfig, pixels: Tensor
) -> Tensor:
    """Compute the map after the last stage, norms in eval mode."""

    def norm(name: str, x: Tensor) -> Tensor:
        parts = [state[f"{name}.{part}"] for part in ("running_mean", "running_var")]
        return functional.batch_norm(x, *parts, state[f"{name}.weight"], state[f"{name}.bias"])

    x = norm("bn1", functional.conv2d(pixels, state["conv1.weight"], stride=2, padding=3)).relu()
    x = functional.max_pool2d(x, 3, stride=2, padding=1)
    strided = 2 if settings.layer == "bottleneck" else 1
    for stage, depth in enumerate(settings.depths, 1):
        for block in range(depth):
            name, y, index = f"layer{stage}.{block}", x, 1
            jump = 2 if stage > 1 and block == 0 else 1
            while f"{name}.conv{index}.weight" in state:
                weight = state[f"{name}.conv{index}.weight"]
                stride = jump if index == strided else 1
                y = functional.conv2d(y, weight, stride=stride, padding=weight.shape[-1] // 2)
                y = norm(f"{name}.bn{index}", y)
                index += 1
                if f"{name}.conv{index}.weight" in state:
                    y = y.relu()
            if f"{name}.downsample.0.weight" in state:
                x = functional.conv2d(x, state[f"{name}.downsample.0.weight"], stride=jump)
                x = norm(f"{name}.downsample.1", x)
            x = (x + y).relu()
    return x
