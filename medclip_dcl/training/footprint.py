"""Bytes that a training step needs, counted without allocating them."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, UntypedStorage, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import BertConfig

from medclip_dcl.config import Config
from medclip_dcl.model.dual_encoder import DualEncoder
from medclip_dcl.training.economy import economise

_DTYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_MOST_PAIRS = 64  # of a larger share of the batch, a part is counted and multiplied


@dataclass(frozen=True)
class Footprint:
    """Memory of one process, bytes."""

    parameters: int
    """Number of parameters; no bytes."""
    weights: int
    """Parameters and buffers."""
    gradients: int
    """One number a parameter."""
    moments: int
    """AdamW's two numbers a parameter."""
    activations: int
    """What the forward pass keeps for the backward pass, at the longest sentences."""
    batches: int
    """Films in hand and read ahead."""
    regions: int
    """Regions of one film; no bytes."""

    @property
    def total(self) -> int:
        """Their sum; an allocator, kernels and the interpreter need more."""
        return self.weights + self.gradients + self.moments + self.activations + self.batches

    @property
    def checkpoint(self) -> int:
        """Bytes of one checkpoint on disk."""
        return self.weights + self.moments


def training_footprint(config: Config, text: BertConfig) -> Footprint:
    """Count the memory that one process needs for a step.

    Args:
        config: the recipe.
        text: sizes of the text encoder.

    Returns:
        Weights, gradients and moments exactly; activations as autograd would keep them, by
        running the model on tensors that have shapes and no content.

    Source: ours. The loss beyond the matrix of scores is left out: batch x batch numbers.
    """
    settings, px = config.train, config.model.image.input_px
    local = settings.global_batch // settings.processes
    longest = min(config.model.text.max_tokens, text.max_position_embeddings)
    encoder = DualEncoder(config.model, text)  # some backbones look at numbers while being built
    mode = FakeTensorMode()
    _empty(encoder, mode)
    with mode:
        # Layout and compilation change no size that is counted here.
        plain = {"channels_last": False, "compile_backend": "none"}
        economise(encoder, settings.model_copy(update=plain))
        encoder.train()
        trained = [item for item in encoder.parameters() if item.requires_grad]
        activations, regions = _kept(encoder, config, local, longest)
        own = [*encoder.parameters(), *encoder.buffers()]
        return Footprint(
            parameters=sum(item.numel() for item in encoder.parameters()),
            weights=_bytes_of(own),
            gradients=_bytes_of(trained),
            moments=2 * _bytes_of(trained),
            activations=activations,
            batches=(settings.loader_workers + 2) * local * px * px,
            regions=regions,
        )


def _empty(encoder: DualEncoder, mode: FakeTensorMode) -> None:
    """Put tensors without content in the place of a model's own."""
    for module in encoder.modules():
        for name, parameter in module.named_parameters(recurse=False):
            empty = nn.Parameter(mode.from_tensor(parameter.detach()), parameter.requires_grad)
            setattr(module, name, empty)
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, mode.from_tensor(buffer))


def _kept(encoder: DualEncoder, config: Config, local: int, longest: int) -> tuple[int, int]:
    """Bytes of what autograd keeps, each storage once, the weights left out; regions of a film."""
    settings, image = config.train, config.model.image
    pairs = min(local, _MOST_PAIRS)
    weights = {_place(item) for item in encoder.parameters()}
    kept: dict[int, UntypedStorage] = {}  # held, so that no two of them share an address

    def keep(tensor: Tensor) -> Tensor:
        kept[_place(tensor)] = tensor.untyped_storage()
        return tensor

    pixels = torch.empty(pairs, image.channels, image.input_px, image.input_px)
    ids = torch.ones(pairs, longest, dtype=torch.int64)
    reduced = settings.precision != "no"
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype=_DTYPES[settings.precision], enabled=reduced),
    ):
        regions, sentences = encoder(pixels, ids, torch.ones_like(ids))
        scores = encoder.score(regions, sentences[:1].repeat(settings.global_batch, 1))
    del scores
    needed = sum(item.nbytes() for place, item in kept.items() if place not in weights)
    return needed * local // pairs, regions.shape[1] * regions.shape[2]


def _place(tensor: Tensor) -> int:
    """Tell storages of tensors without content apart: they have no data pointer."""
    address: int = tensor.untyped_storage()._cdata
    return address


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(item.numel() * item.element_size() for item in tensors)
