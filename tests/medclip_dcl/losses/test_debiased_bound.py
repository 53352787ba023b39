"""The bound of Proposition 2.1 of Wang et al. 2023, with smaller constants, against the loss.

The ideal loss replaces g of Eq. 8 by its expectation over true negatives,
gbar = (E_u e^s - rho E_v e^s) / (1 - rho). With gamma^2 the bound of |s|:

1. log(e^{s_p} + N g) has a slope in g of at most N / ((N + 1) e^{-gamma^2}), since neither e^{s_p}
   nor g is below e^{-gamma^2}. The floor of g brings it no further from gbar, which is above it.
2. The mean of N numbers in [e^{-gamma^2}, e^{gamma^2}] is off by (e^{gamma^2} - e^{-gamma^2}) / 2
   over sqrt(N) in the mean at most: their standard deviation is at most half of their range.
3. g with eta less g with rho is the difference of the two means times
   1 / (1 - eta) - 1 / (1 - rho), and two means differ by the range at most.

At gamma = 1 the paper has 3 e^2 sqrt(pi / 2) where this has (e^2 - 1) / 2, and 3 e^2 where this
has e^2 - 1.
"""

import math

import pytest
import torch

from medclip_dcl.losses.debiased import debiased_contrastive_loss


def bias_bound(N: int, M: int, rho: float, gamma: float, eta: float) -> tuple[float, float, float]:
    """Largest bias in nats, of drawing N negatives, of drawing M positives, of a wrong eta."""
    scale = N / (N + 1) * math.expm1(2 * gamma**2)
    return (
        scale / (2 * math.sqrt(N) * (1 - rho)),
        scale * rho / (2 * math.sqrt(M) * (1 - rho)),
        scale * abs(1 / (1 - eta) - 1 / (1 - rho)),
    )


RHO = 0.3
ANCHORS = 5000


def measure(
    N: int, M: int, eta: float, gamma: float = 1.0, rho: float = RHO
) -> tuple[float, float, float]:
    """Bias, its standard error, and the root mean square of g less its expectation.

    The hardest case for the bound: similarities at either end of their range. Of the anchor's class
    they are high with chance .8, of others with chance .4; with M = 1 the positive is v.
    """
    generator = torch.Generator().manual_seed(N * 100 + M)

    def draw(chance: torch.Tensor) -> torch.Tensor:
        high = torch.rand(chance.shape, generator=generator, dtype=torch.float64) < chance
        return torch.where(high, gamma**2, -(gamma**2))

    own = torch.rand((ANCHORS, N), generator=generator) < rho
    v, u = draw(torch.full((ANCHORS, M), 0.8)), draw(torch.where(own, 0.8, 0.4))
    s = torch.cat([v, u], dim=1)
    known = torch.arange(N + M).lt(M).expand(ANCHORS, -1)
    zeros = torch.zeros(ANCHORS, dtype=torch.long)
    loss = debiased_contrastive_loss(s, zeros, eta, gamma, known_positives=known, reduction="none")
    true = 0.4 * math.exp(gamma**2) + 0.6 * math.exp(-(gamma**2))
    difference = loss - torch.log1p(N * true / s[:, 0].exp())
    g = (u.exp().mean(1) - eta * v.exp().mean(1)) / (1 - eta)
    error = difference.std().item() / math.sqrt(ANCHORS)
    return abs(difference.mean().item()), error, (g - true).square().mean().sqrt().item()


@pytest.mark.parametrize("gamma", [0.5, 1.0])
@pytest.mark.parametrize(("N", "M"), [(4, 1), (64, 1), (64, 8), (256, 16)])
@pytest.mark.parametrize("eta", [RHO, 0.15, 0.45, 0.0])
def test_the_bound_holds(N: int, M: int, eta: float, gamma: float) -> None:
    bias, error, _ = measure(N, M, eta, gamma)
    assert bias + 3 * error <= sum(bias_bound(N, M, RHO, gamma, eta))


def test_the_error_of_g_falls_as_its_two_terms_say() -> None:
    # Each term alone: four times the count, half the error.
    few, many = (measure(N, 128, RHO)[2] for N in (4, 16))
    assert many / few == pytest.approx(0.5, abs=0.03)
    few, many = (measure(256, M, 0.8, rho=0.8)[2] for M in (1, 4))
    assert many / few == pytest.approx(0.5, abs=0.03)
