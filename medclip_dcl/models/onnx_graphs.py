"""The model's parts as ONNX graphs, and how far another engine's answers are from PyTorch's.

    image       pixels -> unit vector of every region
    text        input_ids, attention_mask -> unit vector of every sentence
    similarity  regions, sentences -> score of every sentence on every image

Any number of images and texts, and for a ResNet any size of image.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.models.image_encoder import MEAN, SPREAD

_OPSET = 20
# Images or texts of a case, and word pieces or texts. The first is the exporter's example: an axis
# of length 1 would become fixed.
_CASES = ((2, 6), (1, 3), (3, 8))

Run = Callable[..., Tensor]
"""A part as another engine runs it: its inputs in the graph's order -> its output."""


@dataclass(frozen=True)
class ModelPart:
    """One method of a model, and inputs to export it with and to compare engines on."""

    model: DualEncoder
    method: Callable[..., Tensor]
    axes: Mapping[str, Mapping[int, str]]
    """Input -> axis -> its name, of those that may have any length."""
    output: str
    cases: tuple[tuple[Tensor, ...], ...]


def model_parts(model: DualEncoder, input_px: int) -> dict[str, ModelPart]:
    """Give the parts `image`, `text` and `similarity` of a model in evaluation mode."""
    # A ResNet takes any size; another backbone may have its grid in its weights.
    is_resnet = model.image.kind.startswith("resnet")
    sides = {} if not is_resnet else {2: "height", 3: "width"}
    tall = input_px + model.image.stride if sides else input_px
    words, dim = {0: "texts", 1: "tokens"}, model.similarity.dim

    def cases(make: Callable[[int, int], tuple[Tensor, ...]]) -> tuple[tuple[Tensor, ...], ...]:
        device = model.gamma.device
        return tuple(tuple(item.to(device) for item in make(*case)) for case in _CASES)

    return {
        "image": ModelPart(
            model,
            model.encode_images,
            {"pixels": {0: "images", **sides}},
            "regions",
            cases(lambda images, _: (_images(images, tall, input_px),)),
        ),
        "text": ModelPart(
            model,
            model.encode_sentences,
            {"input_ids": words, "attention_mask": words},
            "sentences",
            cases(partial(_tokens, model)),
        ),
        "similarity": ModelPart(
            model,
            model.score,
            {"regions": {0: "images", 1: "rows", 2: "columns"}, "sentences": {0: "texts"}},
            "scores",
            cases(lambda images, texts: (_unit(images, 3, 4, dim), _unit(texts, dim))),
        ),
    }


def write_graph(part: ModelPart, file: Path) -> None:
    """Write a part as an ONNX graph with its weights."""
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            # The call is a module of its own: without `eval` the exporter warns of training.
            _Call(part.model, part.method).eval(),
            part.cases[0],
            dynamo=True,
            opset_version=_OPSET,
            input_names=list(part.axes),
            output_names=[part.output],
            dynamic_shapes=(tuple(map(dict, part.axes.values())),),
            verbose=False,
        )
    assert program is not None
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # lines of our code, with the folders that it is in
    program.save(str(file))


@torch.no_grad()
def largest_difference(theirs: Run, part: ModelPart) -> float:
    """Give the largest difference of an engine's answers to PyTorch's, over all cases."""
    return max(float((theirs(*case) - part.method(*case)).abs().max()) for case in part.cases)


class _Call(nn.Module):
    """One method of the model as a module of its own, as the exporter asks for."""

    def __init__(self, model: DualEncoder, method: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self._method = model, method

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._method(*inputs)


@contextmanager
def _quiet() -> Iterator[None]:
    # The exporter warns of torchvision, which is left out on purpose, and of changes to come.
    logger: Any = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _images(count: int, height: int, width: int) -> Tensor:
    # Prepared images as a model is given them, -2 to 2, no two alike: noise, a slope, something
    # smooth, and what is black on one side and white on the other.
    rng = torch.Generator().manual_seed(count)
    coarse = torch.rand(1, 1, 5, 4, generator=rng)
    slope = torch.linspace(0, 1, height)[:, None] * torch.linspace(0, 1, width)
    kinds = (
        torch.rand(height, width, generator=rng),
        slope,
        functional.interpolate(coarse, (height, width), mode="bilinear")[0, 0],
        (torch.linspace(0, 1, width) > 0.5).float().expand(height, width),
    )
    grey = torch.stack([kinds[(count + item) % len(kinds)] for item in range(count)])
    return grey.mul(255).round().div(255).sub(MEAN).div(SPREAD).unsqueeze(1)


def _tokens(model: DualEncoder, texts: int, tokens: int) -> tuple[Tensor, Tensor]:
    # Any word pieces will do, and the last sentence is the shortest.
    vocabulary = model.text.backbone.config.vocab_size
    ids = torch.arange(texts * tokens).mul(7919).remainder(vocabulary).view(texts, tokens)
    mask = torch.ones_like(ids)
    mask[-1, tokens // 2 :] = 0
    return ids, mask


def _unit(*shape: int) -> Tensor:
    return functional.normalize(_normal(*shape), dim=-1)


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))
