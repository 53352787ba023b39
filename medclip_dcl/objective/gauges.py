"""What the correction does to a batch: the numbers to watch beside the loss.

The corrected loss alone can fall while nothing is learned: anchors on the floor have
no gradient, and the lower the uncorrected loss, the larger the gradient of the rest.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from medclip_dcl.objective.debiased import DebiasedTerms, debiased_terms
from medclip_dcl.objective.infonce import softplus


def debiasing_gauges(
    s: Float[Tensor, "anchors candidates"],
    positive: Int[Tensor, " anchors"] | None,
    eta: Float[Tensor, " anchors"] | float,
    gamma: Float[Tensor, ""] | float,
    *,
    weights: Float[Tensor, "anchors candidates"] | None = None,
    known_positives: Bool[Tensor, "anchors candidates"] | None = None,
) -> dict[str, Float[Tensor, ""]]:
    """Measure what `debiased_contrastive_loss` does with the same arguments.

    Args:
        s: similarities with their scale.
        positive: column of each anchor's positive; None: the diagonal.
        eta: chance that a random candidate is of the anchor's class, in [0, 1).
        gamma: root of the scale of s.
        weights: factor on e^s of each negative.
        known_positives: candidates that leave the negatives and join v.

    Returns:
        Scalars without gradient, over anchors that have a negative:
        `frac_floor`: share whose Eq. 8 is at or below its floor;
        `mean_weight`: mean, over the others, of the factor by which the correction
            multiplies the gradient of the negatives; for M = 1 that of the whole row;
        `mean_eta`: mean eta;
        `expected_false_negatives`: mean N * eta;
        `uncorrected_loss`: mean InfoNCE loss, in nats.

    Raises:
        ObjectiveError: shapes do not fit, or `eta` is a number outside [0, 1).

    Source: ours. With M = 1 and v = x+ every gradient of a row is that of InfoNCE
        times e^L / (e^L - eta (N + 1)), L the row's InfoNCE loss.
    """
    with torch.no_grad():
        terms = debiased_terms(
            s, positive, eta, gamma, weights=weights, known_positives=known_positives
        )
        return gauges_of_terms(terms, eta)


@torch.no_grad()
def gauges_of_terms(
    terms: DebiasedTerms, eta: Float[Tensor, " anchors"] | float
) -> dict[str, Float[Tensor, ""]]:
    """Measure what the correction does, from terms at hand.

    Args:
        terms: the result of `debiased_terms`.
        eta: the eta that they were computed with.

    Returns:
        The scalars of `debiasing_gauges`.
    """
    A, ell, phi, share, N = terms
    lively = ~A.isneginf()
    off_floor = lively & ~(ell <= phi)
    eta = torch.as_tensor(eta).to(A).expand_as(A)
    # Chain rule: dL/d(negatives) = sigmoid(ell) / (1 - share); InfoNCE's is sigmoid(A).
    weight = ell.sigmoid() / ((1 - share) * A.sigmoid())
    return {
        "frac_floor": 1 - _mean(off_floor.to(A), lively),
        "mean_weight": _mean(weight, off_floor),
        "mean_eta": _mean(eta, lively),
        "expected_false_negatives": _mean(eta * N, lively),
        "uncorrected_loss": _mean(softplus(A), lively),
    }


def _mean(
    values: Float[Tensor, " anchors"], counted: Bool[Tensor, " anchors"]
) -> Float[Tensor, ""]:
    return torch.where(counted, values, 0.0).sum() / counted.sum().clamp_min(1)
