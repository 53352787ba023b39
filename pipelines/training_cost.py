"""Memory and time of a training step, by running one."""

import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, UntypedStorage, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedConfig
from transformers.initialization import no_init_weights

from medclip_dcl.models.dual_encoder import DualEncoder, build_dual_encoder
from medclip_dcl.models.image_encoder import CHANNELS
from medclip_dcl.models.lora import add_adapters
from medclip_dcl.training.dataset import ImageTextBatch
from medclip_dcl.training.launch import settle_precision, start_accelerator
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.optim import freeze, frozen_groups
from medclip_dcl.training.settings import ObjectiveConfig
from medclip_dcl.training.step import TrainStep, configure_performance

from .config import Config

_DTYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_MOST_PAIRS = 64  # of a larger share of the batch, a part is counted and multiplied
_PIECES = 32  # word pieces of a timed sentence: the longest of a batch of report sentences
_FIRST_PAIRS = 4  # pairs of the first timed step on a CPU, where a slow step says enough
_SLOW_SHARE = 8  # a step is slow that takes more than this part of the time
_MOST_STEPS = 20


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory of one process, bytes; an allocator, kernels and the interpreter need more."""

    weights: int
    """Parameters and buffers."""
    gradients: int
    moments: int
    """AdamW's two numbers a parameter."""
    activations: int
    """What the forward pass keeps for the backward pass, at the longest sentences, of a chunk where
    the batch is encoded in chunks."""
    batches: int
    """Images in use, read ahead and being read."""
    parameters: int
    """Their number."""
    regions: int
    """Regions of one image."""

    @property
    def total(self) -> int:
        """All of the bytes."""
        return self.weights + self.gradients + self.moments + self.activations + self.batches

    @property
    def checkpoint(self) -> int:
        """Bytes of one checkpoint on disk."""
        return self.weights + self.moments


def estimate_training_memory(config: Config, text: PreTrainedConfig) -> MemoryEstimate:
    """Count the memory that one process needs for a step, without allocating it.

    Weights, gradients and moments are exact; activations are those that autograd would keep, by
    running the model on tensors that have shapes and no content. The loss beyond the matrix of
    scores is left out: batch x batch numbers.
    """
    settings, px = config.train, config.model.image.input_px
    local = settings.global_batch // settings.processes
    at_once = min(local, settings.chunk or local)
    longest = min(config.model.text.max_tokens, text.max_position_embeddings)
    with no_init_weights():  # not on `meta`: some backbones look at numbers while being built
        encoder = DualEncoder(config.model, text)
    if config.model.lora:
        add_adapters(encoder, config.model.lora, config.seed)
    plain = {"compile_backend": "none"}  # compilation changes no size that is counted here
    configure_performance(encoder, settings.model_copy(update=plain))
    mode = FakeTensorMode()
    for module in encoder.modules():
        for name, parameter in module.named_parameters(recurse=False):
            empty = nn.Parameter(mode.from_tensor(parameter.detach()), parameter.requires_grad)
            setattr(module, name, empty)
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, mode.from_tensor(buffer))
    with mode:
        encoder.train()
        pairs = min(at_once, _MOST_PAIRS)
        ids = torch.ones(pairs, longest, dtype=torch.int64)
        inputs = (torch.empty(pairs, CHANNELS, px, px), ids, torch.ones_like(ids))
        freeze(encoder, frozen_groups(settings, (settings.steps or sys.maxsize) - 1))
        trained = [item for item in encoder.parameters() if item.requires_grad]
        activations, regions = _activations(encoder, config, at_once, inputs)
        if at_once < local:  # unit vectors of all pairs, and their gradients
            activations += 2 * 4 * local * (regions + 1) * config.model.similarity.dim
        return MemoryEstimate(
            parameters=sum(item.numel() for item in encoder.parameters()),
            weights=_bytes_of([*encoder.parameters(), *encoder.buffers()]),
            gradients=_bytes_of(trained),
            moments=2 * _bytes_of(trained),
            activations=activations,
            batches=3 * local * px * px,
            regions=regions,
        )


def _activations(
    encoder: DualEncoder, config: Config, at_once: int, inputs: tuple[Tensor, ...]
) -> tuple[int, int]:
    # Bytes that autograd keeps, without the weights, and the regions of an image.
    settings, pairs = settle_precision(config.train), len(inputs[0])
    scored = settings.chunk or settings.global_batch  # sentences that an image is scored with
    kept: dict[int, UntypedStorage] = {}  # held, so that no two of them share an address

    def address(tensor: Tensor) -> int:  # tensors without content have no data pointer
        storage: int = tensor.untyped_storage()._cdata
        return storage

    def keep(tensor: Tensor) -> Tensor:
        kept[address(tensor)] = tensor.untyped_storage()
        return tensor

    weights = {address(item) for item in encoder.parameters()}
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast(
            "cpu", dtype=_DTYPES[settings.precision], enabled=settings.precision != "no"
        ),
    ):
        regions, sentences = encoder(*inputs)
        scores = encoder.score(regions, sentences[:1].repeat(scored, 1))
    del scores
    needed = sum(item.nbytes() for storage, item in kept.items() if storage not in weights)
    return needed * at_once // pairs, regions.shape[1] * regions.shape[2]


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(item.numel() * item.element_size() for item in tensors)


def measure_throughput(config: Config, text: PreTrainedConfig, seconds: float) -> tuple[float, int]:
    """Time steps of one process on random images, two at least, for about some seconds.

    Gives images per second of one process by wall time, a median, and the pairs in a timed step:
    a process's share of the batch, fewer where a step is slow. The paper's loss stands in for the
    config's, which costs no more than a hundredth of the step.
    """
    share = max(2, config.train.global_batch // config.train.processes)
    alone = {"global_batch": share, "processes": 1, "compile_backend": "none"}
    alone |= {"steps": _MOST_STEPS, "epochs": None}
    settings = config.train.model_copy(update=alone)
    accelerator = start_accelerator(settings)
    encoder = build_dual_encoder(config.model, text, config.seed)
    if config.model.lora:
        add_adapters(encoder, config.model.lora, config.seed)
    loss = ObjectiveConfig(directions=config.objective.directions)
    objective = ContrastiveObjective(loss, 0)
    step = TrainStep(accelerator, encoder, objective, settings, config.seed)

    def timed(batch: ImageTextBatch) -> float:
        begun = time.perf_counter()
        step(batch, False)
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        return time.perf_counter() - begun

    pairs = share if torch.accelerator.is_available() else min(_FIRST_PAIRS, share)
    while True:
        batch = _random_batch(config, text, pairs)
        timed(batch)  # the first step of a size warms caches and allocators
        times = [timed(batch)]
        if pairs == share or times[0] > seconds / _SLOW_SHARE:
            break
        pairs = min(share, 4 * pairs)
    while len(times) < _MOST_STEPS and sum(times) < seconds:
        times.append(timed(batch))
    return pairs / statistics.median(times), pairs


def _random_batch(config: Config, text: PreTrainedConfig, pairs: int) -> ImageTextBatch:
    generator = torch.Generator().manual_seed(0)
    px, width = config.model.image.input_px, min(_PIECES, text.max_position_embeddings)
    ones = torch.ones(pairs)
    ids = torch.randint(text.vocab_size, (pairs, width), generator=generator)
    return ImageTextBatch(
        step=0,
        mine=slice(0, pairs),
        study_ids=tuple(map(str, range(pairs))),
        crops=torch.randint(256, (pairs, 1, px, px), generator=generator, dtype=torch.uint8),
        brightness=ones,
        contrast=ones,
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        eta=0.05 * ones,
    )
