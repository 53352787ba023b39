"""Class probability of a sentence from its pseudo-log-likelihood.

Symbols
    p      exp(pll_nats): how likely the sentence is
    a, k   scale and exponent of the estimate
    eta    chance that a random film shares the sentence's class
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from medclip_dcl.errors import ScoreError


def eta_from_pll(
    pll_nats: Float[Tensor, " sentences"], a: float = 0.2, k: float = 0.35
) -> Float[Tensor, " sentences"]:
    """Estimate each sentence's class probability from its likelihood.

    Args:
        pll_nats: sum of masked-token log-probabilities, nats, at most 0.
        a: scale of the estimate, in (0, 1).
        k: exponent of the estimate, at least 0.

    Returns:
        eta = a * exp(k * pll_nats), in [0, a], in the dtype of `pll_nats`; exactly 0
        where that underflows.

    Raises:
        ScoreError: a PLL is positive or not a number, or a or k is out of its range.

    Source: Wang et al. 2023, Section 2.4: eta = a * p**k; p itself is never formed.
    """
    if not 0 < a < 1 or not (k >= 0 and math.isfinite(k)):
        raise ScoreError(f"eta asks for 0 < a < 1 and k >= 0, got a = {a}, k = {k}")
    wrong = int((~(pll_nats <= 0)).sum())
    if wrong:
        raise ScoreError(f"{wrong} likelihoods are positive or no number; rerun score_sentences")
    if k == 0:
        return torch.full_like(pll_nats, a)
    return a * torch.exp(k * pll_nats)


def cap_eta(eta: Float[Tensor, " sentences"], eta_max: float) -> Float[Tensor, " sentences"]:
    """Keep eta at or below a cap.

    Args:
        eta: class probabilities, at least 0; an oracle may give values up to 1.
        eta_max: the cap, in (0, 1).

    Returns:
        min(eta, eta_max).

    Raises:
        ScoreError: an eta is negative or not a number, or the cap is out of its range.

    Source: ours; a sentence that is true of most films would leave no negatives.
    """
    if not 0 < eta_max < 1:
        raise ScoreError(f"eta_max must lie in (0, 1), got {eta_max}")
    wrong = int((~(eta >= 0)).sum())
    if wrong:
        raise ScoreError(f"{wrong} etas are negative or no number; mend their source")
    return eta.clamp(max=eta_max)
