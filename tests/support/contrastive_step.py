"""One contrastive step of a tiny model, alone or as one of two processes."""

import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from medclip_dcl.losses.gather import gather_with_grad, positive_columns
from medclip_dcl.models.dual_encoder import build_dual_encoder
from medclip_dcl.models.image_encoder import to_input
from medclip_dcl.training.objective import ObjectiveInputs, direction_loss, mean_output
from medclip_dcl.training.settings import ObjectiveConfig
from tests.support import forkserver
from tests.support.tiny_models import (
    random_images,
    random_tokens,
    tiny_model_config,
    tiny_text_config,
)

GLOBAL_BATCH = 8
ETA = torch.linspace(0, 0.8, GLOBAL_BATCH, dtype=torch.float64)
"""So large, at the largest scale, that one anchor of the random model stands on the floor."""
SCALES = {torch.float64: 100.0, torch.float32: 14.0}
"""gamma**2; the largest would spend two of float32's digits."""
TEXT = tiny_text_config()
TEXT.initializer_range = 0.1  # at 0.02 the first norm magnifies rounding by 50


def splice_own_rows(tensor: Tensor) -> Tensor:
    """The usual mistake: gather without gradient, put the local rows back in place."""
    joined = gather_with_grad(tensor.detach()).clone()
    start = dist.get_rank() * len(tensor)
    joined[start : start + len(tensor)] = tensor
    return joined


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "exact": gather_with_grad,
    "detached": lambda tensor: gather_with_grad(tensor.detach()),
    "spliced": splice_own_rows,
}


def step(way: str, dtype: torch.dtype, rows: slice, wrapped: bool = False) -> dict[str, Tensor]:
    """Loss, share on the floor and every gradient of the pairs in `rows`, both directions."""
    model = (
        build_dual_encoder(tiny_model_config(gamma_squared=SCALES[dtype]), TEXT, seed=0)
        .to(dtype)
        .eval()
    )  # eval: batch statistics would be local
    network = DistributedDataParallel(model) if wrapped else model
    gather = WAYS[way]
    pixels = to_input(random_images(GLOBAL_BATCH), 64).to(dtype)[rows]
    ids, mask = random_tokens(GLOBAL_BATCH)
    regions, sentences = network(pixels, ids[rows], mask[rows])
    eta, scale = ETA.to(dtype)[rows], model.gamma**2
    positive = positive_columns(len(eta), eta.device)
    outputs = [
        direction_loss(ObjectiveConfig(), ObjectiveInputs(scale * f, positive, eta, model.gamma))
        for f in (
            model.score(gather(regions), sentences),
            model.score(regions, gather(sentences)).T,
        )
    ]
    output = mean_output(outputs)
    output.loss.backward()
    parts = {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.named_parameters()
    }
    return parts | {"loss": output.loss.detach(), "frac_floor": output.gauges["frac_floor"]}


def two_processes(rank: int, folder: Path) -> None:
    """Write what two processes find, averaged over them, for each way and precision."""
    half = GLOBAL_BATCH // 2
    rows = slice(rank * half, (rank + 1) * half)
    for way in WAYS:
        for dtype in (torch.float64, torch.float32):
            found = step(way, dtype, rows, wrapped=way == "exact")
            for name, value in found.items():
                if way != "exact" or name in {"loss", "frac_floor"}:
                    dist.all_reduce(value)  # DistributedDataParallel has averaged the rest
                    value /= 2
            if rank == 0:
                save_file(found, folder / f"{way}-{dtype}.safetensors")


def run_processes(worker: Callable[[int, Path], None], count: int, folder: Path) -> None:
    """Run `worker(rank, folder)` in `count` processes; the worker must be importable."""
    forkserver.context()
    arguments = (worker, count, folder)
    mp.start_processes(_join, args=arguments, nprocs=count, start_method="forkserver")


def _join(rank: int, worker: Callable[[int, Path], None], count: int, folder: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    meeting = (folder / "meeting").resolve().as_uri()
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=count)
    try:
        worker(rank, folder)
    finally:
        dist.destroy_process_group()
