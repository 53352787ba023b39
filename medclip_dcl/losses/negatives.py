"""Weights on negatives: the rivals of the paper's Table 1.

Every function returns w of shape (anchors, candidates) for
`L = log(1 + sum_n w_n e^{s_n - s_p})`: w multiplies e^s, never s, so that a weight of
0 takes a candidate out. No weight carries a gradient. The positive's own entry is 0.
Removal keeps weights 0 or 1; the others sum to N, the number of negatives.

Arguments in common
    positive          column of each anchor's positive
    text_similarity   cosine of the two texts in a space that does not learn
    beta              sharpness, at least 0; 0 treats all negatives alike
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Pairs = Float[Tensor, "anchors candidates"]


def remove_by_labels(
    label_overlap: Bool[Tensor, "anchors candidates"], positive: Int[Tensor, " anchors"]
) -> Pairs:
    """Drop negatives that share a label with the anchor: 1 for those kept, 0 elsewhere.

    Source: Wang et al. 2023, Table 1, "Remove by CheX5"; uncertain counts as absent.
    """
    return _without(positive, (~label_overlap).float())


def remove_by_similarity(
    text_similarity: Pairs, positive: Int[Tensor, " anchors"], threshold: float
) -> Pairs:
    """Drop negatives whose text is close to the anchor's: 1 up to the threshold, 0 elsewhere.

    Source: Wang et al. 2023, Table 1, "Remove by Text Sim.", which gives no threshold; Zhou et
        al. 2022 with the weight on e^s instead of s.
    """
    return _without(positive, (text_similarity <= threshold).float())


def resample_by_similarity(
    text_similarity: Pairs,
    positive: Int[Tensor, " anchors"],
    beta: float,
    keep_share: float,
    generator: torch.Generator,
) -> Pairs:
    """Keep a random share of the negatives, far texts more often.

    N / K for the K = ceil(keep_share N) negatives that are drawn, 0 elsewhere: without
    replacement, in proportion to e^{-beta cos}.

    Source: Wang et al. 2023, Table 1, "Resample by Text Sim."; the odds are ours.
    """
    N = text_similarity.shape[1] - 1
    K = math.ceil(keep_share * N - 1e-9)  # a share such as 1 - 0.7 is a little above 0.3
    # The K largest of log odds plus Gumbel noise are such a draw; e^{-beta cos} itself would
    # underflow. On the CPU, so that every device draws alike. A draw of exactly 0 would
    # have infinite noise.
    log_odds = -beta * text_similarity.detach().float().cpu()
    uniform = torch.rand(log_odds.shape, generator=generator).clamp_min(torch.finfo().tiny)
    keys = (log_odds - (-uniform.log()).log()).scatter(1, positive.cpu().unsqueeze(1), -torch.inf)
    drawn = keys.topk(K, dim=1).indices.to(text_similarity.device)
    # N / K, so that the loss of a batch is of one size whatever share is kept.
    return torch.zeros_like(text_similarity).float().scatter(1, drawn, N / max(K, 1))


def reweight_by_similarity(
    text_similarity: Pairs, positive: Int[Tensor, " anchors"], beta: float
) -> Pairs:
    """Weigh negatives down whose text is close to the anchor's: N * softmax_n(-beta cos).

    Source: Wang et al. 2023, Table 1, "Reweight by Text Sim."; the softmax is ours.
    """
    N = text_similarity.shape[1] - 1
    if N == 0:
        return torch.zeros_like(text_similarity)
    logits = -beta * text_similarity.detach().float()
    # The positive is out before the softmax, or it would take most of the weight.
    return N * logits.scatter(1, positive.unsqueeze(1), -torch.inf).softmax(dim=1)


def negative_gauges(
    s: Pairs,
    positive: Int[Tensor, " anchors"],
    weights: Pairs | None = None,
    excluded: Bool[Tensor, "anchors candidates"] | None = None,
) -> dict[str, Float[Tensor, ""]]:
    """Measure how far the weights on negatives, None: 1, are from treating all alike.

    Returns:
        Means over anchors: `negatives_removed`, the share of the N = candidates - 1 negatives that
        is excluded or weighs 0; and `effective_negatives`, (sum w)^2 / sum w^2, which is N where
        all weigh the same, and K where K of them do and the others nothing; 0 where none is left.

    Source: ours; Kish's effective sample size.
    """
    w = torch.ones_like(s, dtype=torch.float32) if weights is None else weights.detach().float()
    if excluded is not None:
        w = w.masked_fill(excluded, 0.0)
    w, N = _without(positive, w), max(s.shape[1] - 1, 1)
    squares = (w**2).sum(dim=1)
    effective = w.sum(dim=1) ** 2 / squares.where(squares > 0, 1.0)
    removed = 1 - (w > 0).sum(dim=1) / N
    return {"negatives_removed": removed.mean(), "effective_negatives": effective.mean()}


def _without(positive: Int[Tensor, " anchors"], weights: Pairs) -> Pairs:
    return weights.scatter(1, positive.unsqueeze(1), 0.0)
