"""All-gather whose backward is exact.

With local anchors against gathered candidates, the mean over local anchors as loss
and gradients averaged over processes (as DistributedDataParallel does), every weight
receives the gradient of one process on the joined batch. No factor of the world size
is needed. Every process must have the same number of rows.
"""

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor


def gather_with_grad(tensor: Shaped[Tensor, "rows ..."]) -> Shaped[Tensor, "all_rows ..."]:
    """Join a tensor over all processes, in rank order, and let gradients through.

    Args:
        tensor: local rows; every process has the same shape.

    Returns:
        The rows of all processes. The gradients that all processes have for a row are summed
        where the row is from. Without a process group of two or more, `tensor` itself.

    Source: ours; the adjoint of all-gather is reduce-scatter.
    """
    if _world_size() == 1:
        return tensor
    gathered: Tensor = _AllGather.apply(tensor)  # type: ignore[no-untyped-call]
    return gathered


def positive_columns(rows: int, device: torch.device) -> Shaped[Tensor, " rows"]:
    """Find the columns that local anchors are paired with among gathered candidates.

    `rows` is the number of local anchors, the same in every process.
    """
    rank = dist.get_rank() if _world_size() > 1 else 0
    return torch.arange(rank * rows, (rank + 1) * rows, device=device)


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.rows = len(tensor)
        local = tensor.contiguous()  # collectives move plain memory, and read no strides
        parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, local)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        # Row i went to every process, so its gradient is the sum of what all of them have for it.
        gradient = grads[0].contiguous()
        # Summed where the row is from, each process receiving its own part alone.
        own = gradient.new_empty((ctx.rows, *gradient.shape[1:]))
        dist.reduce_scatter(own, list(gradient.chunk(dist.get_world_size())))
        return own
