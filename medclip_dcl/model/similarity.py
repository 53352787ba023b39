"""Image-sentence score from regions and a sentence: LSE+NL and its simpler relatives.

Axes and symbols
    I, T, R, D     images, texts, regions of an image, dimensions of the shared space
    x_r, y         unit vectors of region r and of the sentence
    h_r            region-sentence score <x_r, y>, in [-1, 1]
    k              the region that answers the sentence best: argmax_r h_r
    f              image-sentence score, in [-1, 1]; the logit is s = gamma**2 * f
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from medclip_dcl.config.model import SimilarityConfig

_LARGEST_BLOCK = 1 << 24  # scores h of one block of texts; 64 MiB in float32


def region_scores(
    regions: Float[Tensor, "images rows columns dim"], sentences: Float[Tensor, "texts dim"]
) -> Float[Tensor, "texts images rows columns"]:
    """Score every region of every image against every sentence.

    Args:
        regions: unit vectors.
        sentences: unit vectors.

    Returns:
        Cosines, in [-1, 1].

    Source: Wang et al. 2023, Section 3.2: the scores used for grounding.
    """
    return torch.einsum("irck,tk->tirc", regions, sentences).clamp(-1, 1)


def image_sentence_scores(
    regions: Float[Tensor, "images regions dim"],
    sentences: Float[Tensor, "texts dim"],
    settings: SimilarityConfig,
) -> Float[Tensor, "texts images"]:
    """Score every image against every sentence.

    Args:
        regions: unit vectors of each image's regions, in any order.
        sentences: unit vectors.
        settings: aggregator and its temperatures.

    Returns:
        f in [-1, 1], float32 at least, whatever autocast does elsewhere. Large
        batches are scored a block of texts at a time, with the same result.

    Source: Wang et al. 2023 name the aggregators; their formulas here are ours:
        `lse`: tau * log mean_r exp(h_r / tau), between mean and maximum of h;
        `nl`: cosine of y and sum_r a_r x_r, a = softmax_r(<x_r, x_k> / tau);
        `lse_nl`: half of each; `mean`: mean_r h_r; `global`: cosine of y and mean_r x_r.
    """
    with torch.autocast(regions.device.type, enabled=False):
        x, y = _at_least_float32(regions), _at_least_float32(sentences)
        if settings.kind == "mean":
            return (y @ x.mean(dim=1).T).clamp(-1, 1)
        if settings.kind == "global":
            return (y @ functional.normalize(x.mean(dim=1), dim=-1).T).clamp(-1, 1)
        texts = max(1, _LARGEST_BLOCK // (x.shape[0] * x.shape[1]))
        if texts >= len(y):
            return _scores(x, y, settings)
        # Each block's scores h are computed anew in the backward pass, not kept.
        blocks = [
            checkpoint(_scores, x, block, settings, use_reentrant=False)
            for block in torch.split(y, texts)
        ]
        return torch.cat(blocks)


def _scores(x: Tensor, y: Tensor, settings: SimilarityConfig) -> Tensor:
    h = y.expand(len(x), -1, -1) @ x.transpose(1, 2)  # (images, texts, regions)
    best, k = h.detach().max(dim=-1)
    if settings.kind == "lse":
        f = _log_mean_exp(h, best, settings.tau_lse)
    elif settings.kind == "nl":
        f = _non_local(x, y, k, settings.tau_nl)
    else:
        local = _log_mean_exp(h, best, settings.tau_lse)
        f = (local + _non_local(x, y, k, settings.tau_nl)) / 2
    return f.T.clamp(-1, 1)


def _log_mean_exp(h: Tensor, best: Tensor, tau: float) -> Tensor:
    """Compute tau * log mean_r exp(h_r / tau) relative to the largest h: never above it."""
    relative = torch.add(-best.unsqueeze(-1) / tau, h, alpha=1 / tau)  # one pass over h
    return best + tau * (relative.exp_().sum(dim=-1) / h.shape[-1]).log()


def _non_local(x: Tensor, y: Tensor, k: Tensor, tau: float) -> Tensor:
    """Cosine of the sentence and of the regions that look like its best region."""
    v: Tensor = _AttendToBest.apply(x, k, tau)  # type: ignore[no-untyped-call]
    return (functional.normalize(v, dim=-1) * y).sum(dim=-1)


class _AttendToBest(torch.autograd.Function):
    """v = sum_r a_r x_r with a = softmax_r(<x_r, x_k> / tau), for every image and text.

    Written out because x enters three times: its gradient is summed in place here,
    where autograd would make three tensors of the size of all regions and add them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: Tensor, tau: float) -> Tensor:
        images = torch.arange(len(x), device=x.device).unsqueeze(1)
        query = x[images, k] / tau  # (images, texts, dim)
        a = torch.softmax(query @ x.transpose(1, 2), dim=-1)  # (images, texts, regions)
        ctx.save_for_backward(x, query, a, images, k)
        ctx.tau = tau
        return a @ x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dv: Tensor) -> tuple[Tensor, None, None]:
        x, query, a, images, k = ctx.saved_tensors
        dx = a.transpose(1, 2) @ dv
        dlogits = (dv @ x.transpose(1, 2)).mul_(a)
        dlogits.addcmul_(a, dlogits.sum(dim=-1, keepdim=True), value=-1)
        dx.baddbmm_(dlogits.transpose(1, 2), query)
        dx.index_put_((images, k), (dlogits @ x).div_(ctx.tau), accumulate=True)
        return dx, None, None


def _at_least_float32(vectors: Tensor) -> Tensor:
    return vectors if vectors.dtype == torch.float64 else vectors.float()
