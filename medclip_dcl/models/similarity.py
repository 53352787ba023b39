"""Image-sentence score from regions and a sentence: LSE+NL and its simpler relatives; RoIAlign.

Axes and symbols
    I, T, R, D     images, texts, regions of an image, dimensions of the shared space
    x_r, y         unit vectors of region r and of the sentence
    h_r            region-sentence score <x_r, y>, in [-1, 1]
    k              the region that answers the sentence best: argmax_r h_r
    f              image-sentence score, in [-1, 1]; the logit is s = gamma**2 * f

RoIAlign averages bilinear samples on a regular grid inside a box. Bilinear interpolation is
separable, so the average is rows @ map @ columns, with a vector of weights for each axis.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from medclip_dcl.models.settings import SimilarityConfig

_BLOCK = {"cpu": 1 << 17}  # scores h of one block of images; 1/2 MiB stays in a core's cache
_BLOCK_ELSEWHERE = 1 << 24  # on a GPU few large blocks: every kernel call costs
_LARGEST_KEPT = 1 << 26  # scores h that are kept for the backward pass; beyond, they are redone
_SMOOTHING = 1.5  # cells
_LEAST_LENGTH = 1e-12  # of v, which regions that cancel out may leave without direction


def region_scores(
    regions: Float[Tensor, "images rows columns dim"], sentences: Float[Tensor, "texts dim"]
) -> Float[Tensor, "texts images rows columns"]:
    """Score unit vectors of every region against those of every sentence: cosines in [-1, 1].

    Source: Wang et al. 2023, Section 3.2: the scores used for grounding.
    """
    return torch.einsum("irck,tk->tirc", regions, sentences).clamp(-1, 1)


def score_grids(
    regions: Float[Tensor, "images rows columns dim"],
    sentences: Float[Tensor, "texts dim"],
    settings: SimilarityConfig,
) -> Float[np.ndarray, "images texts rows columns"]:
    """Score regions of any length against unit vectors of sentences, as heatmaps show them.

    BioViL's are smoothed by a Gaussian of 1.5 cells, as hi-ml's inference engine does it.
    """
    is_biovil = settings.kind == "biovil"
    vectors = functional.normalize(regions, dim=-1) if is_biovil else regions
    grids: np.ndarray = region_scores(vectors, sentences).transpose(0, 1).cpu().numpy()
    if is_biovil:
        from scipy import ndimage  # who trains has no need of it

        sigma = (0, 0, _SMOOTHING, _SMOOTHING)
        grids = ndimage.gaussian_filter(grids, sigma=sigma)
    return grids


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
        `lse_nl`: half of each; `mean`: mean_r h_r; `global`,
        `biovil` and `cxr_clip`: cosine of y and mean_r x_r.
    """
    with torch.autocast(regions.device.type, enabled=False):
        x, y = _at_least_float32(regions), _at_least_float32(sentences)
        if settings.kind == "mean":
            return (y @ x.mean(dim=1).T).clamp(-1, 1)
        if settings.kind in {"global", "biovil", "cxr_clip"}:
            return (y @ functional.normalize(x.mean(dim=1), dim=-1).T).clamp(-1, 1)
        if torch.compiler.is_exporting():  # a graph for any number of images has no blocks
            return _pair_scores(x, y, settings)[0].clamp(-1, 1)
        # By blocks of images, so that scores h are used while they are still in a core's cache.
        pairs = max(1, len(y) * x.shape[1])  # scores h of one image
        images = max(1, _BLOCK.get(x.device.type, _BLOCK_ELSEWHERE) // pairs)
        if torch.is_grad_enabled():
            f: Tensor = _PairScores.apply(x, y, settings, images)  # type: ignore[no-untyped-call]
            return f.clamp(-1, 1)
        from_regions = settings.kind != "lse" and len(y) > x.shape[1]
        score = _scores_from_regions if from_regions else _pair_scores
        return torch.cat(
            [score(block, y, settings)[0] for block in torch.split(x, images)], 1
        ).clamp(-1, 1)


_LOCAL_SHARE = {"lse": 1.0, "lse_nl": 0.5, "nl": 0.0}  # of f; the rest is non-local


def _pair_scores(x: Tensor, y: Tensor, settings: SimilarityConfig) -> tuple[Tensor, ...]:
    """Score (texts, images) in as few passes over the region scores h as can be.

        f_L = tau * log mean_r exp(h_r / tau)
        f_G = <v, y> / |v|                       v = sum_r a_r x_r, a = softmax_r(<x_r, x_k> / tau)

    After the score comes what its gradient is made of.
    """
    (images, regions, dim), texts = x.shape, y.shape[0]  # len(y) would fix it in an exported graph
    rows, tau = x.reshape(-1, dim), settings.tau
    h = (y / tau @ rows.T).view(texts, images, regions)  # h / tau: one product, no pass of its own
    best, k = h.max(dim=-1)
    p = torch.softmax(h, dim=-1)
    # p_k = exp(h_k) / sum_r exp(h_r) holds the sum that is wanted: p is the gradient's in any case.
    p_k = p.gather(2, k.unsqueeze(2)).squeeze(2)
    local = tau * (best - (p_k * regions).log())
    share = _LOCAL_SHARE[settings.kind]
    if share == 1:
        return local, p
    row_k = (k + torch.arange(0, images * regions, regions, device=x.device)).T.flatten()
    query = rows.index_select(0, row_k).view(images, texts, dim).div_(tau)
    a = torch.softmax(query @ x.transpose(1, 2), dim=-1)  # (images, texts, regions)
    v = a @ x
    f_G, length = _cosine(v, y)
    f = torch.lerp(f_G.T, local, share)
    return f, p, row_k, query, a, v, f_G, length


def _scores_from_regions(x: Tensor, y: Tensor, settings: SimilarityConfig) -> tuple[Tensor]:
    """Score as `_pair_scores` does, for more texts than regions.

    v depends on the text through its best region k alone, so it is computed once a region.
    """
    tau = settings.tau
    h = x @ y.T / tau  # (images, regions, texts): a maximum over rows is the faster one
    best, k = h.max(dim=1)
    total = h.sub_(best.unsqueeze(1)).exp_().sum(dim=1)
    local = tau * (best + (total / x.shape[1]).log())
    attended = torch.softmax(x @ x.transpose(1, 2) / tau, dim=-1) @ x
    f_G, _ = _cosine(attended[torch.arange(len(x), device=x.device).unsqueeze(1), k], y)
    return (torch.lerp(f_G, local, _LOCAL_SHARE[settings.kind]).T,)


def _cosine(v: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine (images, texts) of v with the unit vectors y, and the length of v."""
    length = torch.linalg.vector_norm(v, dim=-1).clamp_min(_LEAST_LENGTH)
    return torch.linalg.vecdot(v, y) / length, length


class _PairScores(torch.autograd.Function):
    """`_pair_scores` of all images, block by block, with its gradient.

    Written out because x enters four times: through h, as what v averages, as the keys and as
    the query of the attention. Its gradient is summed in place here, where autograd would make
    four tensors of the size of all regions and add them, and join those of the blocks.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, settings: SimilarityConfig, images: int) -> Tensor:
        parts = [_pair_scores(block, y, settings) for block in torch.split(x, images)]
        # h is the largest tensor of a step: where it is too large to keep, it is computed twice.
        saved = parts if len(y) * x.shape[:2].numel() <= _LARGEST_KEPT else []
        ctx.save_for_backward(x, y, *(tensor for part in saved for tensor in part[1:]))
        ctx.settings, ctx.images = settings, images
        return torch.cat([part[0] for part in parts], dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, df: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, y, *saved = ctx.saved_tensors
        settings, share = ctx.settings, _LOCAL_SHARE[ctx.settings.kind]
        dx, dy = x.new_empty(x.shape), torch.zeros_like(y)
        blocks = torch.split(x, ctx.images)
        each = len(saved) // len(blocks)
        for number, (block, dblock) in enumerate(
            zip(blocks, torch.split(dx, ctx.images), strict=True)
        ):
            part = saved[number * each : (number + 1) * each]
            p, *attention = part or _pair_scores(block, y, settings)[1:]
            dfs = df[:, number * ctx.images :][:, : len(block)]
            rows, drows = block.reshape(-1, x.shape[2]), dblock.view(-1, x.shape[2])
            # f_L = tau log mean_r exp(h_r / tau): its derivative by h_r is p_r.
            dh = (p * (share * dfs).unsqueeze(-1)).view(len(y), -1)
            # First way of x, h_r = <x_r, y>: dx_r = sum over texts of dh_r y.
            torch.mm(dh.T, y, out=drows)
            dy.addmm_(dh, rows)
            if not attention:
                continue
            row_k, query, a, v, f_G, length = attention
            # f_G = <v, y> / |v|: dv = (y - f_G v / |v|) / |v|, and y's is v / |v|.
            dcosine = ((1 - share) * dfs.T / length).unsqueeze(-1)
            dy.add_((v * dcosine).sum(dim=0))
            dv = torch.addcmul(y * dcosine, v, dcosine * (f_G / length).unsqueeze(-1), value=-1)
            # Second way, v = sum_r a_r x_r with a held: dx_r += a_r dv.
            dblock.baddbmm_(a.transpose(1, 2), dv)
            # v with x_r held: da_r = <dv, x_r>. Through the softmax over regions,
            # dlogits_r = a_r (da_r - sum_q a_q da_q); the two lines are its two terms.
            dlogits = (dv @ block.transpose(1, 2)).mul_(a)
            dlogits.addcmul_(a, dlogits.sum(dim=-1, keepdim=True), value=-1)
            # Third way, logits_r = <query, x_r> as keys: dx_r += dlogits_r query.
            dblock.baddbmm_(dlogits.transpose(1, 2), query)
            # Fourth way, query = x_k / tau: dx_k += sum_r dlogits_r x_r / tau. Several texts may
            # have the same best region k, so their rows must add up. k itself has no gradient.
            drows.index_add_(0, row_k, (dlogits @ block).flatten(0, 1), alpha=1 / settings.tau)
        return dx, dy, None, None


def _at_least_float32(vectors: Tensor) -> Tensor:
    return vectors if vectors.dtype == torch.float64 else vectors.float()


def roi_align(
    features: Float[Tensor, "images channels rows columns"],
    boxes: Float[Tensor, "boxes 4"],
    image_of_box: Int[Tensor, " boxes"],
) -> Float[Tensor, "boxes channels"]:
    """Pool each box of a feature map: the mean of one bilinear sample a cell that it spans.

    Boxes are (x0, y0, x1, y1) in cells, x1 > x0 and y1 > y0; `image_of_box` is the row of
    `features` that each is on. A box has one sample at least along each axis; samples more than a
    cell outside the map count as 0.

    Source: He et al. 2017, RoIAlign with half-pixel alignment and adaptive sampling
        (`aligned=True`, `sampling_ratio=0` elsewhere), with one bin.
    """
    x0, y0, x1, y1 = (boxes.to(features.dtype) - 0.5).unbind(dim=1)  # centres at whole numbers
    # Bilinear interpolation is separable: one vector of weights an axis, no sample is formed.
    across_rows = _axis_weights(y0, y1, features.shape[2])
    across_columns = _axis_weights(x0, x1, features.shape[3])
    return torch.einsum("br,bcrk,bk->bc", across_rows, features[image_of_box], across_columns)


def box_vectors(
    regions: Float[Tensor, "images rows columns dim"],
    boxes: Float[Tensor, "boxes 4"],
    image_of_box: Int[Tensor, " boxes"],
) -> Float[Tensor, "boxes dim"]:
    """Pool the directions of the regions inside each box into a unit vector.

    Boxes are x, y, width, height, each as a share of the image's width or height.

    Source: Wang et al. 2023, Section 3.2: RoIAlign on the region embeddings.
    """
    rows, columns = regions.shape[1:3]
    x, y, width, height = boxes.unbind(dim=1)
    cells = torch.stack([x * columns, y * rows, (x + width) * columns, (y + height) * rows], dim=1)
    regions = functional.normalize(regions, dim=-1)  # BioViL's keep their lengths
    pooled = roi_align(regions.permute(0, 3, 1, 2), cells, image_of_box)
    return functional.normalize(pooled, dim=-1)


def global_vectors(
    regions: Float[Tensor, "images rows columns dim"],
) -> Float[Tensor, "images dim"]:
    """Return the direction of each image's mean region: a unit vector.

    Its cosine with a sentence is the image's score where `similarity.kind` is `global`.
    """
    return functional.normalize(regions.float().mean(dim=(1, 2)), dim=-1)


def _axis_weights(
    start: Float[Tensor, " boxes"], stop: Float[Tensor, " boxes"], cells: int
) -> Float[Tensor, "boxes cells"]:
    samples = (stop - start).ceil().clamp_min(1)  # differs from box to box
    step = torch.arange(int(samples.max()) if len(samples) else 1, device=start.device)
    within = (step + 0.5) / samples.unsqueeze(1)  # (boxes, samples), in units of a box
    position = start.unsqueeze(1) + within * (stop - start).unsqueeze(1)
    counts = step < samples.unsqueeze(1)  # the rest is padding
    counts = counts & (position >= -1) & (position <= cells)
    # Up to a cell outside the map a sample takes the value of the border; beyond, it counts as 0.
    nearest = position.clamp(0, cells - 1).unsqueeze(-1)
    cell = torch.arange(cells, device=start.device, dtype=start.dtype)
    hat = (1 - (nearest - cell).abs()).clamp_min(0)  # linear interpolation's weights
    return (hat * counts.unsqueeze(-1)).sum(dim=1) / samples.unsqueeze(1)
