"""Sample-specific debiased contrastive loss (Wang et al. 2023, Eq. 7 and 8).

Axes and symbols
    anchors, candidates   rows and columns of s; with texts as anchors, texts and images
    s       scaled similarity of anchor x and candidate x', |s| <= gamma**2
    p       column of the anchor's positive x+
    N       negatives u of an anchor, draws from all classes
    M       positives v of an anchor: x+ alone, or x+ and what else is known of its class
    eta     chance that one of u shares the anchor's class, in [0, 1)
    K       candidates found to be of the anchor's class among u: false negatives found
    g       (1/(1-eta)) [ (1/N) sum_n e^{s(x,u_n)} - eta (1/M) sum_m e^{s(x,v_m)} ]      (Eq. 8)
            but at least e^{-gamma**2}, the least value that e^s can take; Figure 5 leaves this
            floor out, and meets logarithms of negative numbers
    Eq. 8 takes N eta false negatives out of u. K of them that are found leave u beforehand,
    and must not be taken out twice: N - K negatives are left, (N eta - K) / (N - K) of them
    false, or none; these stand for N and eta in everything below.
    loss    -log( e^{s_p} / (e^{s_p} + N g) ) = log(1 + N g / e^{s_p})                   (Eq. 7)

Everything is computed relative to e^{s_p} and in logarithms, so that no scale overflows:
    A       log of   sum_n e^{s(x,u_n)} / e^{s_p}                 what InfoNCE sees
    C       log of   N eta (1/M) sum_m e^{s(x,v_m)} / e^{s_p}     what is expected to be false
    ell     log of   N g / e^{s_p} = A + log(1 - e^{C-A}) - log(1-eta)      where C < A
    phi     log of   N e^{-gamma**2} / e^{s_p}                              the floor

What the correction does to a batch: the numbers to watch next to the loss.

The corrected loss alone can fall while nothing is learned: anchors on the floor have
no gradient, and the lower the uncorrected loss, the larger the gradient of the rest.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from medclip_dcl.core.errors import ObjectiveError
from medclip_dcl.losses.info_nce import (
    Reduction,
    check_range,
    checked,
    log_negatives,
    negative_count,
    reduce,
    softplus,
)

Floor = Literal["floor", "zero", "fallback"]


class DebiasedTerms(NamedTuple):
    """Terms of Eq. 7 and 8, one of each per anchor."""

    A: Float[Tensor, " anchors"]
    """Log of the uncorrected negative term over e^{s_p}; minus infinity: no negatives."""
    ell: Float[Tensor, " anchors"]
    """Log of the corrected one; minus infinity where Eq. 8 is not positive."""
    phi: Float[Tensor, " anchors"]  # log of its floor
    share: Float[Tensor, " anchors"]
    """Part of the negative term that is expected to be false, in [0, 1); 0 where ell is not."""
    N: Float[Tensor, "..."]
    """Negatives: their count, or the sum of their weights; one for all where it is the same."""
    false: Float[Tensor, "..."]
    """Negatives of the anchor's class that are to be expected; one for all where it is the same."""

    def loss(self, floor: Floor, reduction: Reduction = "mean") -> Float[Tensor, "..."]:
        """Compute the loss, Eq. 7; arguments as in `debiased_contrastive_loss`."""
        if floor == "floor":
            # phi has a gradient towards s_p alone: the positive is pulled a little, nothing pushed.
            log_ratio = torch.where(self.ell <= self.phi, self.phi, self.ell)
        elif floor == "zero":
            # ell is minus infinity where Eq. 8 is not positive: loss and gradient are 0 there.
            log_ratio = self.ell
        elif floor == "fallback":
            # Such an anchor goes on learning by InfoNCE instead of hardly at all.
            log_ratio = torch.where(self.ell <= self.phi, self.A, self.ell)
        else:
            raise ObjectiveError(f"floor is {floor!r}; it must be floor, zero or fallback")
        return reduce(softplus(log_ratio), ~self.A.isneginf(), reduction)

    @torch.no_grad()
    def gauges(self) -> dict[str, Float[Tensor, ""]]:
        """Measure what the correction does: the scalars of `debiasing_gauges`."""
        A, ell, phi, share, N, false = self
        lively = ~A.isneginf()
        off_floor = lively & ~(ell <= phi)
        false = false.expand_as(A)
        # Chain rule: dL/d(negatives) = sigmoid(ell) / (1 - share); InfoNCE's is sigmoid(A).
        weight = ell.sigmoid() / ((1 - share) * A.sigmoid())
        return {
            "frac_floor": 1 - _mean(off_floor.to(A), lively),
            "mean_weight": _mean(weight, off_floor),
            "mean_eta": _mean(false / N, lively),
            "expected_false_negatives": _mean(false, lively),
            "uncorrected_loss": _mean(softplus(A), lively),
        }


def debiased_contrastive_loss(
    s: Float[Tensor, "anchors candidates"],
    positive: Int[Tensor, " anchors"] | None,
    eta: Float[Tensor, " anchors"] | float,
    gamma: Float[Tensor, ""] | float,
    *,
    weights: Float[Tensor, "anchors candidates"] | None = None,
    known_positives: Bool[Tensor, "anchors candidates"] | None = None,
    known_mates: Bool[Tensor, "anchors candidates"] | None = None,
    floor: Floor = "floor",
    reduction: Reduction = "mean",
) -> Float[Tensor, "..."]:
    """Contrast each anchor with its negatives, less those expected to be false.

    Args:
        s: similarities with their scale, `|s| <= gamma**2`; CLIP's `logit_scale` is
            `gamma**2`, a temperature t is `1 / gamma**2`.
        positive: column of each anchor's positive; None: the diagonal.
        eta: chance that a random candidate is of the anchor's class, in [0, 1): one an
            anchor (Wang et al. 2023) or one for all (Chuang et al. 2020). A constant:
            it receives no gradient. 0 gives InfoNCE.
        gamma: root of the scale of s; read for the floor alone, without gradient.
        weights: factor on e^s of each negative, at least 0, no gradient. N is their
            sum: let them sum to the number of negatives, unless they remove some. Those
            removed are taken to be of the anchor's class as often as the others.
        known_positives: columns of the anchor's class that were never drawn from all
            classes: further views of x+, its neighbors. They join v, and are not among
            the N. The positive is always one.
        known_mates: candidates found to be of the anchor's class: duplicates, images
            whose report says the same. They leave the negatives and join v, and eta
            falls to what is left to expect, `max(0, (N eta - K) / (N - K))`.
        floor: what stands in for g where Eq. 8 falls below its least value:
            `floor`: that value, e^{-gamma**2}; the anchor then hardly learns;
            `zero`: the same, but g may fall to 0;
            `fallback`: the uncorrected loss of that anchor.
        reduction: `mean` over anchors that have a negative, `sum`, or `none`: one
            loss an anchor.

    Returns:
        The loss, at least 0; float32 at least.

    Raises:
        ObjectiveError: shapes do not fit, `eta` is outside [0, 1), a weight is negative or not
            finite, or `floor` or `reduction` is unknown. Tensors on an accelerator are checked
            there, without waiting: they fail as a RuntimeError at its next synchronization.

    Source: Wang et al. 2023, Eq. 7 and 8; floors: Chuang et al. 2020, Appendix B; false negatives
        that are found: ours.
    """
    terms = debiased_terms(
        s,
        positive,
        eta,
        gamma,
        weights=weights,
        known_positives=known_positives,
        known_mates=known_mates,
    )
    return terms.loss(floor, reduction)


def debiased_terms(
    s: Float[Tensor, "anchors candidates"],
    positive: Int[Tensor, " anchors"] | None,
    eta: Float[Tensor, " anchors"] | float,
    gamma: Float[Tensor, ""] | float,
    *,
    weights: Float[Tensor, "anchors candidates"] | None = None,
    known_positives: Bool[Tensor, "anchors candidates"] | None = None,
    known_mates: Bool[Tensor, "anchors candidates"] | None = None,
) -> DebiasedTerms:
    """Compute the terms of Eq. 7 and 8, with gradient towards `s`.

    Arguments and errors are those of `debiased_contrastive_loss`.
    """
    s, positive = checked(s, positive)
    eta = _checked_eta(eta, s)
    s_p = s.gather(1, positive.unsqueeze(1)).squeeze(1)
    v = _union(known_positives, known_mates)
    N = negative_count(s, positive, weights=weights, excluded=v)
    if known_mates is not None:
        K = negative_count(s, positive, weights=weights, excluded=known_positives) - N
        # (N_before eta - K) / N with N_before = N + K, and eta itself, to the bit, where K is 0.
        left = eta - (1 - eta) * K / N.clamp_min(torch.finfo(N.dtype).tiny)
        eta = left.clamp_min(0)
    A = log_negatives(s, positive, weights=weights, excluded=v) - s_p
    # With eta = 0, C is minus infinity and ell becomes A: InfoNCE, without a case of its own.
    C = N.log() + eta.log() + _log_mean_positive(s, positive, v, s_p)

    dead = C >= A  # Eq. 8 is not positive, or there is no negative
    gap = torch.where(dead, -1.0, C - A)  # -1: any value, it keeps the gradient finite
    ell = torch.where(dead, 0.0, A) + torch.log(-torch.expm1(gap)) - torch.log1p(-eta)
    ell = torch.where(dead, -torch.inf, ell)
    scale = gamma.detach() if isinstance(gamma, Tensor) else gamma  # or it would grow by itself
    phi = N.log() - scale**2 - s_p
    return DebiasedTerms(A, ell, phi, torch.where(dead, 0.0, gap.exp()), N, eta * N)


def _checked_eta(
    eta: Float[Tensor, " anchors"] | float, s: Float[Tensor, "anchors candidates"]
) -> Float[Tensor, "..."]:
    constant = torch.as_tensor(eta, dtype=s.dtype).detach()  # a constant of the data: no gradient
    if constant.shape not in {(), s.shape[:1]}:
        raise ObjectiveError(
            f"eta has shape {tuple(constant.shape)} for {len(s)} anchors; give one an anchor, "
            "in the order of the rows of s"
        )
    check_range(constant, "eta", 1.0, "it is a class probability: cap it, as by clamp(max=0.2)")
    # A number is written on the device of s: copying it there would wait for the device.
    return constant.to(s.device) if isinstance(eta, Tensor) else s.new_full((), eta)


def _union(
    first: Bool[Tensor, "anchors candidates"] | None,
    second: Bool[Tensor, "anchors candidates"] | None,
) -> Bool[Tensor, "anchors candidates"] | None:
    if first is None or second is None:
        return second if first is None else first
    return first | second


def _log_mean_positive(
    s: Float[Tensor, "anchors candidates"],
    positive: Int[Tensor, " anchors"],
    v: Bool[Tensor, "anchors candidates"] | None,
    s_p: Float[Tensor, " anchors"],
) -> Float[Tensor, " anchors"] | float:
    """Log of (1/M) sum_m e^{s(x,v_m)} / e^{s_p}."""
    if v is None:
        return 0.0  # M = 1 and v = x+
    v = v.scatter(1, positive.unsqueeze(1), True)
    log_sum = s.masked_fill(~v, -torch.inf).logsumexp(dim=1)
    return log_sum - v.sum(dim=1).to(s.dtype).log() - s_p


def debiasing_gauges(
    s: Float[Tensor, "anchors candidates"],
    positive: Int[Tensor, " anchors"] | None,
    eta: Float[Tensor, " anchors"] | float,
    gamma: Float[Tensor, ""] | float,
    *,
    weights: Float[Tensor, "anchors candidates"] | None = None,
    known_positives: Bool[Tensor, "anchors candidates"] | None = None,
    known_mates: Bool[Tensor, "anchors candidates"] | None = None,
) -> dict[str, Float[Tensor, ""]]:
    """Measure what `debiased_contrastive_loss` does with the same arguments.

    Returns:
        Scalars without gradient, over anchors that have a negative:
        `frac_floor`: share whose Eq. 8 is at or below its floor;
        `mean_weight`: mean, over the others, of the factor by which the correction
            multiplies the gradient of the negatives; for M = 1 that of the whole row;
        `mean_eta`: mean eta; with `known_mates`, of what is left to expect;
        `expected_false_negatives`: mean N * eta, likewise;
        `uncorrected_loss`: mean InfoNCE loss, in nats.

    Raises:
        ObjectiveError: as `debiased_contrastive_loss`.

    Source: ours. With M = 1 and v = x+ every gradient of a row is that of InfoNCE
        times e^L / (e^L - eta (N + 1)), L the row's InfoNCE loss.
    """
    with torch.no_grad():
        terms = debiased_terms(
            s,
            positive,
            eta,
            gamma,
            weights=weights,
            known_positives=known_positives,
            known_mates=known_mates,
        )
        return terms.gauges()


def _mean(
    values: Float[Tensor, " anchors"], counted: Bool[Tensor, " anchors"]
) -> Float[Tensor, ""]:
    return torch.where(counted, values, 0.0).sum() / counted.sum().clamp_min(1)
