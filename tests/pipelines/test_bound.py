import math

import pytest
import torch

from medclip_dcl.errors import ObjectiveError
from medclip_dcl.losses.debiased import debiased_contrastive_loss
from pipelines import bound
from pipelines.bound import bias_bound, corrected_loss, largest_gamma


def test_an_empty_bound_is_called_empty_and_the_exact_table_follows(capsys):
    words = ["--n", "63", "--eta", "0.1", "--gamma", "3.74", "--wrong-eta", "0.05"]
    assert bound.main(words) == 0
    out = capsys.readouterr().out
    assert "This is empty: at gamma 3.74" in out
    # At chance nothing is corrected; there the gradient weighs 1 / (1 - eta).
    first, *_, last = [line.split() for line in out.splitlines()[-5:]]
    assert first == ["4.16", "4.16", "x", "1.11", "4.16", "x", "1.05"]
    assert last == ["0.832", "floor", "none", "floor", "none"]


@pytest.mark.parametrize("words", [["--eta", "1"], ["--n", "0"], ["--gamma", "-1"]])
def test_what_is_out_of_range_ends_with_a_line(capsys, words):
    assert bound.main(words) == 2
    assert "at least 1" in capsys.readouterr().err


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
    assert bias + 3 * error <= bias_bound(N, M, RHO, gamma, eta).total


def test_the_error_of_g_falls_as_its_two_terms_say() -> None:
    # Each term alone: four times the count, half the error.
    few, many = (measure(N, 128, RHO)[2] for N in (4, 16))
    assert many / few == pytest.approx(0.5, abs=0.03)
    few, many = (measure(256, M, 0.8, rho=0.8)[2] for M in (1, 4))
    assert many / few == pytest.approx(0.5, abs=0.03)
    bounds = [bias_bound(N, M, RHO, 1.0) for N, M in ((10_000, 4), (40_000, 16))]
    assert bounds[1].negatives / bounds[0].negatives == pytest.approx(0.5, rel=1e-3)
    assert bounds[1].positives / bounds[0].positives == pytest.approx(0.5, rel=1e-3)


def test_a_wrong_eta_stays_wrong_with_more_negatives() -> None:
    assert measure(256, 16, 0.0)[0] > 5 * measure(256, 16, RHO)[0]
    few, many = (bias_bound(count, count, RHO, 1.0, 0.1) for count in (100, 10**8))
    assert many.wrong_eta == pytest.approx(few.wrong_eta, rel=0.01)
    assert many.total == pytest.approx(many.wrong_eta, rel=0.01)


def test_the_parts_are_what_they_are_by_hand() -> None:
    # gamma^2 = 1: e^2 - 1 = 6.3891; N / (N + 1) = 0.8; rho = .2, eta = .5
    found = bias_bound(4, 1, 0.2, 1.0, 0.5)
    assert found.negatives == pytest.approx(0.8 * 6.389056 / (2 * 2 * 0.8))
    assert found.positives == pytest.approx(0.8 * 6.389056 * 0.2 / (2 * 0.8))
    assert found.wrong_eta == pytest.approx(0.8 * 6.389056 * (2 - 1.25))
    e2 = math.exp(2)
    assert found.ceiling == pytest.approx(math.log((1 + 4 * (e2 - 0.5) / 0.5) / (1 + 4 / e2)))
    assert found.total == pytest.approx(sum(found[:3]))
    assert bias_bound(4, 1, 0.2, 1.0).wrong_eta == 0
    nobody = bias_bound(4, 1, 0.0, 1.0)  # no false negatives: only the draw of the N is left
    assert nobody.total == nobody.negatives == pytest.approx(0.8 * 6.389056 / (2 * 2))
    paper = 3 * e2 * math.sqrt(math.pi / 2)
    assert bias_bound(4, 1, 0.2, 1.0).negatives < paper / (2 * 0.8) / 8


def test_largest_gamma_is_where_the_bound_reaches_it() -> None:
    gamma = largest_gamma(bias_bound(64, 1, 0.1, 1.0, 0.05), 2.0)
    assert bias_bound(64, 1, 0.1, gamma, 0.05).total == pytest.approx(2.0)


def test_the_corrected_loss_is_that_of_the_loss_itself() -> None:
    s = torch.randn(50, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    biased = debiased_contrastive_loss(s, None, 0.0, 3.0, reduction="none")
    for eta in (0.0, 0.1, 0.5):
        loss = debiased_contrastive_loss(s, None, eta, 3.0, floor="zero", reduction="none")
        for uncorrected, corrected in zip(biased.tolist(), loss.tolist(), strict=True):
            assert (corrected_loss(uncorrected, 49, eta) or 0) == pytest.approx(corrected)


@pytest.mark.parametrize(
    "arguments",
    [
        *((0, 1, 0.1, 1.0), (1, 0, 0.1, 1.0), (1, 1, 0.1, 0.0)),
        *((1, 1, rho, 1.0) for rho in (-0.1, 1.0)),
        *((1, 1, 0.1, 1.0, eta) for eta in (-0.1, 1.0)),
    ],
)
def test_what_is_out_of_range_is_refused(arguments: tuple[float, ...]) -> None:
    with pytest.raises(ObjectiveError, match="at least 1"):
        bias_bound(*arguments)
