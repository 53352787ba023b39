"""Multi-positive contrastive loss with a third set that is left out.

Axes and symbols
    s         scaled similarity of anchor i and candidate n
    positive  the column that anchor i is paired with
    same      candidates known to say what the anchor says; with the positive they form P
    excluded  candidates of which it is not known; they leave the loss altogether
    P, D      positives; denominator: positives and known negatives

    L_i = -(1/|P_i|) sum_{p in P_i} log( exp(s_ip) / sum_{n in D_i} exp(s_in) )

This is the supervised contrastive loss of Khosla et al. 2020 with three-valued sets,
and no form of the debiased loss: the text decides who is who, not a probability.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from medclip_dcl.losses.info_nce import Reduction, checked, reduce


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
    in_p = same.scatter(1, positive.unsqueeze(1), True)
    if excluded is not None:
        s = s.masked_fill(excluded & ~in_p, -torch.inf)
    # An excluded candidate's share is log 0: it is masked, since 0 times it is not a number.
    log_share = s.log_softmax(dim=1).masked_fill(~in_p, 0.0)
    return reduce(-log_share.sum(dim=1) / in_p.sum(dim=1), in_p.any(dim=1), reduction)
