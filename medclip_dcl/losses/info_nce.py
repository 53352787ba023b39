"""Contrastive losses without a correction: InfoNCE, and one with several positives.

Axes and symbols
    anchors, candidates   rows and columns of s
    s       scaled similarity of anchor i and candidate n
    p       column of the anchor's positive x+
    w       weight of each negative, 1 by default
    N       sum of w over the negatives
    A       log( sum_n w_n e^{s_n} / e^{s_p} ) over the negatives; InfoNCE is log(1 + e^A)

Of several positives the text decides who is who, not a probability:

    same      candidates known to say what the anchor says; with the positive they form P
    excluded  candidates of which it is not known; they leave the loss altogether
    P, D      positives; denominator: positives and known negatives

    L_i = -(1/|P_i|) sum_{p in P_i} log( exp(s_ip) / sum_{n in D_i} exp(s_in) )

This is the supervised contrastive loss of Khosla et al. 2020 with three-valued sets.
"""

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from medclip_dcl.core.errors import ObjectiveError

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
        ObjectiveError: shapes do not fit, a weight is negative or not finite, or `reduction` is
            unknown.

    Source: van den Oord et al. 2018, Eq. 4; equal to cross entropy where all weights
        are 1.
    """
    s, positive = checked(s, positive)
    s_positive = s.gather(1, positive.unsqueeze(1)).squeeze(1)
    A = log_negatives(s, positive, weights=weights) - s_positive
    return reduce(softplus(A), ~A.isneginf(), reduction)


def checked(
    s: Float[Tensor, "anchors candidates"], positive: Int[Tensor, " anchors"] | None
) -> tuple[Float[Tensor, "anchors candidates"], Int[Tensor, " anchors"]]:
    """Bring similarities to float32 at least, and name the column of every anchor's positive."""
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
    # What the losses do next is not among autocast's half-precision operations: float32 stays.
    return (s if s.dtype == torch.float64 else s.float()), positive


def check_range(values: Float[Tensor, "..."], name: str, below: float, remedy: str) -> None:
    """Refuse values that are negative, not numbers, or not below a bound.

    On an accelerator the device itself stops, so that the check does not wait for it.
    """
    if not values.numel():
        return
    rule = f"outside [0, {below:g}); {remedy}"
    least, largest = values.detach().aminmax()  # both are not a number where one value is not
    if values.is_cuda or torch.compiler.is_compiling():
        torch._assert_async((least >= 0) & (largest < below), f"{name} is {rule}")
    elif values.is_cpu:
        low, high = least.item(), largest.item()
        if not (low >= 0 and high < below):
            raise ObjectiveError(f"{name} is {high if low >= 0 else low:g}, {rule}")


def log_negatives(
    s: Float[Tensor, "anchors candidates"],
    positive: Int[Tensor, " anchors"],
    *,
    weights: Float[Tensor, "anchors candidates"] | None = None,
    excluded: Bool[Tensor, "anchors candidates"] | None = None,
) -> Float[Tensor, " anchors"]:
    """Compute log sum_n w_n e^{s_n} over all candidates but the positive and the excluded ones.

    An anchor with no negative left gets minus infinity, without gradient.
    """
    if weights is not None:
        check_range(weights, "a weight", math.inf, "it multiplies e^s, and 0 removes a candidate")
        s = s + weights.detach().to(s.dtype).log()  # 0 becomes minus infinity: really gone
    if excluded is not None:
        s = s.masked_fill(excluded, -torch.inf)
    negatives = s.scatter(1, positive.unsqueeze(1), -torch.inf)
    if weights is None and excluded is None and s.shape[1] > 1:
        return negatives.logsumexp(dim=1)  # no row can be empty: the common case, in one pass
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
    """Compute N, the sum of the negatives' weights: per anchor, or once where all are alike.

    Of `s` shape, dtype and device are read.
    """
    if weights is None and excluded is None:
        return s.new_full((), s.shape[1] - 1)
    counted = torch.ones_like(s) if weights is None else weights.detach().to(s.dtype)
    if excluded is not None:
        counted = counted.masked_fill(excluded, 0)
    return counted.scatter(1, positive.unsqueeze(1), 0).sum(dim=1)


def softplus(x: Float[Tensor, " anchors"]) -> Float[Tensor, " anchors"]:
    """Compute log(1 + e^x) to the last digit of float64; 0 at minus infinity."""
    return functional.softplus(x, threshold=40.0)  # beyond it the 1 is below rounding


def reduce(
    losses: Float[Tensor, " anchors"], counted: Bool[Tensor, " anchors"], reduction: Reduction
) -> Float[Tensor, "..."]:
    """Reduce the losses of the anchors; those that are not counted are 0 and leave the mean."""
    if reduction == "mean":
        return losses.sum() / counted.sum().clamp_min(1)
    if reduction == "sum":
        return losses.sum()
    if reduction == "none":
        return losses
    raise ObjectiveError(f"reduction is {reduction!r}; it must be mean, sum or none")


def multi_positive_loss(
    s: Float[Tensor, "anchors candidates"],
    same: Bool[Tensor, "anchors candidates"],
    excluded: Bool[Tensor, "anchors candidates"] | None = None,
    *,
    positive: Int[Tensor, " anchors"] | None = None,
    reduction: Reduction = "mean",
) -> Float[Tensor, "..."]:
    """Contrast every positive of an anchor with all candidates that are not excluded.

    Args:
        s: scaled similarities; half precision is raised to float32.
        same: candidates that join the paired one as positives.
        excluded: candidates that are in neither numerator nor denominator; None: none.
            A candidate that is a positive as well stays a positive.
        positive: column of each anchor's paired candidate; None: the diagonal.
        reduction: `mean` or `sum` over anchors, or `none`.

    Returns:
        The loss, a scalar or one value per anchor, at least 0. It is the cross entropy
        where no candidate is `same` or excluded, and 0 where nothing else is left.

    Raises:
        ObjectiveError: shapes do not fit, or `reduction` is unknown.

    Source: Khosla et al. 2020, Eq. 2 (positives stay in the denominator: taking them
        out costs retrieval); the excluded set is ours.
    """
    s, positive = checked(s, positive)
    # The paired candidate is a positive whatever the text says of it.
    in_p = same.scatter(1, positive.unsqueeze(1), True)
    if excluded is not None:
        s = s.masked_fill(excluded & ~in_p, -torch.inf)
    # An excluded candidate's share is log 0: it is masked, since 0 times it is not a number.
    log_share = s.log_softmax(dim=1).masked_fill(~in_p, 0.0)
    return reduce(-log_share.sum(dim=1) / in_p.sum(dim=1), in_p.any(dim=1), reduction)
