"""The pairwise sigmoid loss, a baseline that needs no global batch."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from medclip_dcl.losses.info_nce import checked


def sigmoid_loss(
    s: Float[Tensor, "anchors candidates"],
    positive: Int[Tensor, " anchors"] | None = None,
    *,
    bias: Float[Tensor, ""] | float,
) -> Float[Tensor, ""]:
    """Decide for every pair by itself whether it belongs together.

    Args:
        s: similarities with their scale.
        positive: column of each anchor's positive; None: the diagonal.
        bias: added to s; about minus the log of the number of candidates, so that a
            pair is a negative until the model says otherwise.

    Returns:
        Sum over candidates of -log sigmoid(z (s + bias)), z = 1 for the positive and
        -1 elsewhere, mean over anchors.

    Raises:
        ObjectiveError: shapes do not fit.

    Source: Zhai et al. 2023, Algorithm 1; the paper learns the bias, from -10.
    """
    s, positive = checked(s, positive)
    z = torch.full_like(s, -1.0).scatter(1, positive.unsqueeze(1), 1.0)
    return -functional.logsigmoid(z * (s + bias)).sum(dim=1).mean()
