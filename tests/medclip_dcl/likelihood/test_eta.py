"""Eta from likelihoods: the paper's table of values, its limits, and what is refused."""

import math

import pytest
import torch

from medclip_dcl.core.errors import ScoreError
from medclip_dcl.likelihood.eta import cap_eta, eta_from_pll


def test_eta_is_a_times_p_to_the_k():
    pll_nats = torch.tensor([0.0, -1.0, -5.0, -10.0], dtype=torch.float64)
    expected = [0.2, 0.2 * math.exp(-0.35), 0.2 * math.exp(-1.75), 0.2 * math.exp(-3.5)]
    assert eta_from_pll(pll_nats).tolist() == pytest.approx(expected, rel=1e-15)
    assert eta_from_pll(pll_nats, a=0.1, k=1.0)[2].item() == pytest.approx(0.1 * math.exp(-5))


def test_eta_of_a_certain_sentence_is_a_and_k_zero_gives_a_everywhere():
    pll_nats = torch.tensor([0.0, -0.0, -7.0, -torch.inf])
    assert eta_from_pll(pll_nats, a=0.3).tolist()[:2] == [torch.tensor(0.3).item()] * 2
    assert eta_from_pll(pll_nats, a=0.3, k=0.0).eq(0.3).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_eta_is_monotone_and_underflows_to_exactly_zero(dtype):
    pll_nats = -torch.logspace(-4, 6, 400, dtype=dtype)
    eta = eta_from_pll(pll_nats)
    assert (eta[1:] <= eta[:-1]).all()
    assert eta[0] < 0.2
    assert eta[-1] == 0
    assert not eta.isnan().any()
    # p itself underflows float32 below -103 nats
    assert eta_from_pll(torch.tensor([-150.0])).item() == pytest.approx(0.2 * math.exp(-52.5))


def test_positive_or_missing_likelihoods_are_refused_with_their_number():
    with pytest.raises(ScoreError, match="2 likelihoods"):
        eta_from_pll(torch.tensor([-1.0, 1e-6, torch.nan]))


@pytest.mark.parametrize(("a", "k"), [(0.0, 0.3), (1.0, 0.3), (0.2, -0.1), (0.2, math.nan)])
def test_a_and_k_out_of_range_are_refused(a, k):
    with pytest.raises(ScoreError, match="0 < a < 1"):
        eta_from_pll(torch.tensor([-1.0]), a=a, k=k)


def test_cap_leaves_what_is_below_it_alone():
    eta = torch.tensor([0.0, 0.05, 0.2, 0.83], dtype=torch.float64)
    assert cap_eta(eta, 0.2).tolist() == [0.0, 0.05, 0.2, 0.2]


@pytest.mark.parametrize("value", [-0.1, math.nan])
def test_cap_refuses_what_is_no_probability(value):
    with pytest.raises(ScoreError, match="1 etas"):
        cap_eta(torch.tensor([0.1, value]), 0.2)
    with pytest.raises(ScoreError, match="eta_max"):
        cap_eta(torch.tensor([0.1]), 1.0)
