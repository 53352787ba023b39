"""Image-sentence score from regions and a sentence: LSE+NL and its simpler relatives; RoIAlign.

Axes and symbols
    I, T, R, D     images, texts, regions of an image, dimensions of the shared space
    x_r, y         unit vectors of region r and of the sentence
    h_r            region-sentence score <x_r, y>, in [-1, 1]
    k              the region that answers the sentence best: argmax_r h_r
    f              image-sentence score, in [-1, 1]; the logit is s = gamma**2 * f

RoIAlign averages bilinear samples on a regular grid inside each bin of a box. Bilinear
interpolation is separable, so the average is rows @ map @ columns.T, with one weight
matrix for each axis.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from medclip_dcl.models.settings import SimilarityConfig

_BLOCK = {"cpu": 1 << 18}  # scores h of one block of images; 1 MiB stays in a core's cache
_BLOCK_ELSEWHERE = 1 << 24  # on a GPU few large blocks: every kernel call costs
_LARGEST_KEPT = 1 << 26  # scores h that are kept for the backward pass; beyond, they are redone


def region_scores(
    regions: Float[Tensor, "images rows columns dim"], sentences: Float[Tensor, "texts dim"]
) -> Float[Tensor, "texts images rows columns"]:
    """Score unit vectors of every region against those of every sentence: cosines in [-1, 1].

    Source: Wang et al. 2023, Section 3.2: the scores used for grounding.
    """
    return torch.einsum("irck,tk->tirc", regions, sentences).clamp(-1, 1)


def image_sentence_scores(
    regions: Float[Tensor, "images regions dim"],
    sentences: Float[Tensor, "texts dim"],
    settings: SimilarityConfig,
) -> Float[Tensor, "texts images"]:
    """Score every image against every sentence.

    Of unit vectors; regions may be in any order. f is in [-1, 1], float32 at least, whatever
    autocast does elsewhere.

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
        if torch.compiler.is_exporting():  # a graph for any number of images has no blocks
            return _scores(x, y, settings).T
        # By blocks of images, so that scores h are used while they are still in a core's cache.
        pairs = max(1, len(y) * x.shape[1])  # scores h of one image
        images = max(1, _BLOCK.get(x.device.type, _BLOCK_ELSEWHERE) // pairs)
        blocks = torch.split(x, images)
        # h is the largest tensor of a step: where it is too large to keep, it is computed twice.
        if len(x) * pairs <= _LARGEST_KEPT or not torch.is_grad_enabled():
            scores = [_scores(block, y, settings) for block in blocks]
        else:
            scores = [
                checkpoint(_scores, block, y, settings, use_reentrant=False) for block in blocks
            ]
        return torch.cat(scores).T


def _scores(x: Tensor, y: Tensor, settings: SimilarityConfig) -> Tensor:
    if settings.kind == "lse":
        h = y.expand(x.shape[0], -1, -1) @ x.transpose(1, 2)
        best, _ = h.detach().max(dim=-1)  # a constant that cancels: it needs no gradient
        excess = ((h - best.unsqueeze(-1)) / settings.tau).exp()
        return (best + settings.tau * excess.mean(dim=-1).log()).clamp(-1, 1)
    local: Tensor
    v: Tensor
    if torch.is_grad_enabled():
        local, v = _LocalAndAttended.apply(  # type: ignore[no-untyped-call]
            x, y, settings.tau
        )
    elif torch.compiler.is_exporting() or len(y) <= x.shape[1]:
        # the same without the call through autograd, which costs a query an eighth
        local, v, *_ = _attend(x, y, settings.tau)
    else:
        local, v = _attend_from_regions(x, y, settings.tau)
    non_local = (functional.normalize(v, dim=-1) * y).sum(dim=-1)
    f = non_local if settings.kind == "nl" else (local + non_local) / 2
    return f.clamp(-1, 1)


def _attend(x: Tensor, y: Tensor, tau: float) -> tuple[Tensor, ...]:
    """Give what LSE and NL need of each image and text, in as few passes over h as can be.

        f_L = tau * log mean_r exp(h_r / tau)      relative to the largest h: never above it
        v   = sum_r a_r x_r                        a = softmax_r(<x_r, x_k> / tau)

    After f_L and v comes what their gradients are made of.
    """
    h = y.expand(x.shape[0], -1, -1) @ x.transpose(1, 2)  # (images, texts, regions)
    best, k = h.max(dim=-1)
    # In place: h is the largest tensor here and is not read again. No exponent is above 0.
    excess = h.sub_(best.unsqueeze(-1)).div_(tau).exp_()
    total = excess.sum(dim=-1)
    images = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    query = x[images, k] / tau  # (images, texts, dim)
    a = torch.softmax(query @ x.transpose(1, 2), dim=-1)  # (images, texts, regions)
    local = best + tau * (total / x.shape[1]).log()
    return local, a @ x, excess, total, query, a, images, k


def _attend_from_regions(x: Tensor, y: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Give f_L and v as `_attend` does, for more texts than regions.

    v depends on the text through its best region k alone, so it is computed once a region.
    """
    h = x @ y.T  # (images, regions, texts): a maximum over rows is the faster one
    best, k = h.max(dim=1)
    total = h.sub_(best.unsqueeze(1)).div_(tau).exp_().sum(dim=1)
    local = best + tau * (total / x.shape[1]).log()
    attended = torch.softmax(x @ x.transpose(1, 2) / tau, dim=-1) @ x
    return local, attended[torch.arange(len(x), device=x.device).unsqueeze(1), k]


class _LocalAndAttended(torch.autograd.Function):
    """`_attend` with its gradient.

    Written out because x enters four times: through h, as what v averages, as the keys and as
    the query of the attention. Its gradient is summed in place here, where autograd would make
    four tensors of the size of all regions and add them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, tau: float) -> tuple[Tensor, Tensor]:
        local, v, *kept = _attend(x, y, tau)
        ctx.save_for_backward(x, y, *kept)
        ctx.tau = tau
        return local, v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlocal: Tensor, dv: Tensor) -> tuple[Tensor, Tensor, None]:
        x, y, excess, total, query, a, images, k = ctx.saved_tensors
        # f_L = tau log mean_r exp(h_r / tau): its derivative by h_r is softmax_r(h / tau), and
        # excess / total is that softmax. The largest h, subtracted for safety, cancels out.
        dh = excess * (dlocal / total).unsqueeze(-1)
        # First way of x, h_r = <x_r, y>: dx_r = sum over texts of dh_r y.
        dx = dh.transpose(1, 2) @ y
        # Second way, v = sum_r a_r x_r with a held: dx_r += a_r dv.
        dx.baddbmm_(a.transpose(1, 2), dv)
        # v with x_r held: da_r = <dv, x_r>. Through the softmax over regions,
        # dlogits_r = a_r (da_r - sum_q a_q da_q); the two lines are its two terms.
        dlogits = (dv @ x.transpose(1, 2)).mul_(a)
        dlogits.addcmul_(a, dlogits.sum(dim=-1, keepdim=True), value=-1)
        # Third way, logits_r = <query, x_r> as keys: dx_r += dlogits_r query.
        dx.baddbmm_(dlogits.transpose(1, 2), query)
        # Fourth way, query = x_k / tau: dx_k += sum_r dlogits_r x_r / tau. Several texts may
        # have the same best region k, so their rows must add up. k itself has no gradient.
        dx.index_put_((images, k), (dlogits @ x).div_(ctx.tau), accumulate=True)
        # y enters through h alone: which region is best has no gradient.
        return dx, (dh @ x).sum(dim=0), None


def _at_least_float32(vectors: Tensor) -> Tensor:
    return vectors if vectors.dtype == torch.float64 else vectors.float()


def roi_align(
    features: Float[Tensor, "images channels rows columns"],
    boxes: Float[Tensor, "boxes 4"],
    image_of_box: Int[Tensor, " boxes"],
    spatial_scale: float,
    output_size: int = 1,
) -> Float[Tensor, "boxes channels out out"]:
    """Pool each box of a feature map onto a small grid.

    Args:
        features: maps.
        boxes: (x0, y0, x1, y1) in pixels of the model's input, x1 > x0 and y1 > y0.
        image_of_box: row of `features` that each box is on.
        spatial_scale: cells per input pixel: one over the encoder's stride.
        output_size: bins along each side of a box, each the mean of one bilinear sample a
            cell that it spans, at least one; those more than a cell outside count as 0.

    Source: He et al. 2017, RoIAlign with half-pixel alignment and adaptive sampling
        (`aligned=True`, `sampling_ratio=0` elsewhere).
    """
    cells = boxes.to(features.dtype) * spatial_scale - 0.5  # cell centres at whole numbers
    x0, y0, x1, y1 = cells.unbind(dim=1)
    # Bilinear interpolation is separable: one matrix of weights an axis, no sample is formed.
    across_rows = _axis_weights(y0, y1, features.shape[2], output_size)
    across_columns = _axis_weights(x0, x1, features.shape[3], output_size)
    return torch.einsum("bor,bcrk,bpk->bcop", across_rows, features[image_of_box], across_columns)


def box_vectors(
    regions: Float[Tensor, "images rows columns dim"],
    boxes: Float[Tensor, "boxes 4"],
    image_of_box: Int[Tensor, " boxes"],
) -> Float[Tensor, "boxes dim"]:
    """Pool the region vectors inside each box into a unit vector.

    Boxes are x, y, width, height, each as a share of the image's width or height.

    Source: Wang et al. 2023, Section 3.2: RoIAlign on the region embeddings.
    """
    rows, columns = regions.shape[1:3]
    x, y, width, height = boxes.unbind(dim=1)
    cells = torch.stack([x * columns, y * rows, (x + width) * columns, (y + height) * rows], dim=1)
    pooled = roi_align(regions.permute(0, 3, 1, 2), cells, image_of_box, spatial_scale=1.0)
    return functional.normalize(pooled.flatten(1), dim=-1)


def global_vectors(
    regions: Float[Tensor, "images rows columns dim"],
) -> Float[Tensor, "images dim"]:
    """Give the direction of each image's mean region: a unit vector.

    Its cosine with a sentence is the image's score where `similarity.kind` is `global`.
    """
    return functional.normalize(regions.float().mean(dim=(1, 2)), dim=-1)


def _axis_weights(
    start: Float[Tensor, " boxes"], stop: Float[Tensor, " boxes"], cells: int, bins: int
) -> Float[Tensor, "boxes bins cells"]:
    width = (stop - start) / bins
    samples = width.ceil().clamp_min(1)  # per bin; differs from box to box
    step = torch.arange(int(samples.max()) if len(samples) else 1, device=start.device)
    within = (step + 0.5) / samples.unsqueeze(1)  # (boxes, samples), in units of a bin
    bin_index = torch.arange(bins, device=start.device, dtype=start.dtype)
    offset = (bin_index[:, None] + within[:, None, :]) * width[:, None, None]
    position = start[:, None, None] + offset  # (boxes, bins, samples)
    counts = (step < samples.unsqueeze(1))[:, None, :]  # the rest is padding
    counts = counts & (position >= -1) & (position <= cells)
    # Up to a cell outside the map a sample takes the value of the border; beyond, it counts as 0.
    nearest = position.clamp(0, cells - 1).unsqueeze(-1)
    cell = torch.arange(cells, device=start.device, dtype=start.dtype)
    hat = (1 - (nearest - cell).abs()).clamp_min(0)  # linear interpolation's weights
    return (hat * counts.unsqueeze(-1)).sum(dim=2) / samples[:, None, None]
