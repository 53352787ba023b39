"""The uncorrected baseline: InfoNCE, with optional weights on the negatives.

Axes and symbols
    anchors, candidates   rows and columns of s
    s       scaled similarity of anchor i and candidate n
    p       column of the anchor's positive x+
    w       weight of each negative, 1 by default
    N       sum of w over the negatives
    A       log( sum_n w_n e^{s_n} / e^{s_p} ) over the negatives; the loss is log(1 + e^A)
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from medclip_dcl.errors import ObjectiveError

Reduction = Literal["mean", "sum", "none"]


def info_nce_loss(
    s: Float[Tensor, "anchors candidates"],
    positive: Int[Tensor, " anchors"] | None = None,
    *,
    weights: Float[Tensor, "anchors candidates"] | None = None,
    reduction: Reduction = "mean",
) -> Float[Tensor, "..."]:
    """Classify each anchor's positive among all candidates.

    Args:
        s: similarities with their scale; for CLIP, `logit_scale * image @ text.T`.
        positive: column of each anchor's positive; None: the diagonal.
        weights: factor on e^s of each negative, at least 0, no gradient; 0 takes a
            candidate out. The positive's own entry is not read.
        reduction: `mean` over anchors that have a negative, `sum`, or `none`: one
            loss an anchor.

    Returns:
        log(1 + sum_n w_n e^{s_n - s_p}), at least 0; float32 at least.

    Raises:
        ObjectiveError: shapes do not fit, or `reduction` is unknown.

    Source: van den Oord et al. 2018, Eq. 4; equal to cross entropy where all weights
        are 1.
    """
    s, positive = checked(s, positive)
    s_positive = s.gather(1, positive.unsqueeze(1)).squeeze(1)
    A = log_negatives(s, positive, weights=weights) - s_positive
    return reduce(softplus(A), A, reduction)


def checked(
    s: Float[Tensor, "anchors candidates"], positive: Int[Tensor, " anchors"] | None
) -> tuple[Float[Tensor, "anchors candidates"], Int[Tensor, " anchors"]]:
    """Bring similarities to float32 at least and name every anchor's positive.

    Args:
        s: similarities with their scale.
        positive: column of each anchor's positive; None: the diagonal.

    Returns:
        `s` and `positive`.

    Raises:
        ObjectiveError: shapes do not fit.
    """
    anchors, candidates = s.shape
    if positive is None:
        if anchors > candidates:
            raise ObjectiveError(
                f"s has {anchors} anchors and {candidates} candidates, so its diagonal holds no "
                "positive for some; give positive"
            )
        positive = torch.arange(anchors, device=s.device)
    elif positive.shape != (anchors,):
        raise ObjectiveError(
            f"positive has shape {tuple(positive.shape)} for {anchors} anchors; give "
            "one column each"
        )
    # Nothing below is on autocast's list of half-precision operations: float32 stays float32.
    return (s if s.dtype == torch.float64 else s.float()), positive


def log_negatives(
    s: Float[Tensor, "anchors candidates"],
    positive: Int[Tensor, " anchors"],
    *,
    weights: Float[Tensor, "anchors candidates"] | None = None,
    excluded: Bool[Tensor, "anchors candidates"] | None = None,
) -> Float[Tensor, " anchors"]:
    """Sum up each anchor's negatives.

    Args:
        s: similarities with their scale.
        positive: column of each anchor's positive, which is not a negative.
        weights: factor on e^s of each negative, no gradient.
        excluded: further candidates that are not negatives.

    Returns:
        log sum_n w_n e^{s_n}; minus infinity, without gradient, where none is left.
    """
    if weights is not None:
        s = s + weights.detach().to(s.dtype).log()  # 0 becomes minus infinity: really gone
    if excluded is not None:
        s = s.masked_fill(excluded, -torch.inf)
    negatives = s.scatter(1, positive.unsqueeze(1), -torch.inf)
    if weights is None and excluded is None and s.shape[1] > 1:
        return negatives.logsumexp(dim=1)
    empty = (negatives == -torch.inf).all(dim=1)
    # A dead row is summed over zeros instead: its own gradient would not be a number.
    lively = negatives.masked_fill(empty.unsqueeze(1), 0).logsumexp(dim=1)
    return torch.where(empty, -torch.inf, lively)


def negative_count(
    s: Float[Tensor, "anchors candidates"],
    positive: Int[Tensor, " anchors"],
    *,
    weights: Float[Tensor, "anchors candidates"] | None = None,
    excluded: Bool[Tensor, "anchors candidates"] | None = None,
) -> Float[Tensor, "..."]:
    """Count the negatives of each anchor, N.

    Args:
        s: similarities; read for their shape, dtype and device alone.
        positive: column of each anchor's positive, which is not a negative.
        weights: factor on e^s of each negative; N is then their sum.
        excluded: further candidates that are not negatives.

    Returns:
        N per anchor, or one number where it is the same for all.
    """
    if weights is None and excluded is None:
        return s.new_full((), s.shape[1] - 1)
    counted = torch.ones_like(s) if weights is None else weights.detach().to(s.dtype)
    if excluded is not None:
        counted = counted.masked_fill(excluded, 0)
    return counted.scatter(1, positive.unsqueeze(1), 0).sum(dim=1)


def softplus(x: Float[Tensor, " anchors"]) -> Float[Tensor, " anchors"]:
    """Compute log(1 + e^x) to the last digit of float64.

    Args:
        x: any number; minus infinity gives 0.

    Returns:
        log(1 + e^x); beyond 40 the 1 is below rounding and x itself is returned.
    """
    return functional.softplus(x, threshold=40.0)


def reduce(
    losses: Float[Tensor, " anchors"],
    A: Float[Tensor, " anchors"],
    reduction: Reduction,
) -> Float[Tensor, "..."]:
    """Reduce the losses of the anchors.

    Args:
        losses: one an anchor.
        A: minus infinity marks an anchor without negatives; its loss is 0.
        reduction: `mean` over the other anchors, `sum`, or `none`.

    Returns:
        A scalar, or `losses`.

    Raises:
        ObjectiveError: `reduction` is unknown.
    """
    if reduction == "mean":
        return losses.sum() / (~A.isneginf()).sum().clamp_min(1)
    if reduction == "sum":
        return losses.sum()
    if reduction == "none":
        return losses
    raise ObjectiveError(f"reduction is {reduction!r}; it must be mean, sum or none")
