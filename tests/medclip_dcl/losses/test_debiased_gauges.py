import math

import pytest
import torch

from medclip_dcl.losses.debiased import debiased_contrastive_loss, debiased_terms, debiasing_gauges
from medclip_dcl.losses.info_nce import info_nce_loss


def rows(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    s = 3 * torch.rand(24, 24, generator=generator, dtype=torch.float64)
    s.diagonal().copy_(torch.linspace(-3, 6, 24))
    return s.requires_grad_()


def test_uniform_logits_weigh_one_over_one_minus_eta() -> None:
    gauges = debiasing_gauges(torch.zeros(4, 64), None, 0.2, math.sqrt(14))
    assert gauges["mean_weight"].item() == pytest.approx(1 / 0.8, rel=1e-6)
    assert gauges["frac_floor"].item() == 0
    assert gauges["mean_eta"].item() == pytest.approx(0.2)
    assert gauges["expected_false_negatives"].item() == pytest.approx(12.6, rel=1e-6)
    assert gauges["uncorrected_loss"].item() == pytest.approx(math.log(64), rel=1e-6)


def test_weight_is_the_ratio_of_the_gradients_off_the_floor() -> None:
    s, eta = rows(), torch.linspace(0.05, 0.3, 24, dtype=torch.float64)
    biased = info_nce_loss(s, reduction="none")
    loss = debiased_contrastive_loss(s, None, eta, 3.0, reduction="none")
    off = (biased > (1 + 23 * eta).log()) & (loss.detach() > 0)
    corrected = torch.autograd.grad(loss.sum(), s)[0]
    ratio = (corrected.diagonal() / torch.autograd.grad(biased.sum(), s)[0].diagonal())[off]
    gauges = debiasing_gauges(s, None, eta, 3.0)
    assert gauges["mean_weight"].item() == pytest.approx(ratio.mean().item(), rel=1e-10)
    assert gauges["frac_floor"].item() == pytest.approx(1 - off.double().mean().item())
    assert 0 < gauges["frac_floor"] < 1


def test_weight_is_that_of_the_negatives_with_class_mates() -> None:
    s = rows(1)
    known = torch.rand(24, 24, generator=torch.Generator().manual_seed(0)) < 0.2
    known |= torch.eye(24, dtype=torch.bool)
    loss = debiased_contrastive_loss(
        s, None, 0.1, 3.0, known_positives=known, floor="fallback", reduction="none"
    )
    # InfoNCE without the mates: weight 0 for each.
    biased = info_nce_loss(s, weights=(~known).double(), reduction="none")
    corrected = torch.autograd.grad(loss.sum(), s)[0]
    plain = torch.autograd.grad(biased.sum(), s)[0]
    first = (~known).int().argmax(dim=1)  # any negative of the row
    line = torch.arange(24)
    ratio = corrected[line, first] / plain[line, first]
    gauges = debiasing_gauges(s, None, 0.1, 3.0, known_positives=known)
    off = ratio > 1 + 1e-9
    assert gauges["mean_weight"].item() == pytest.approx(ratio[off].mean().item(), rel=1e-9)
    assert gauges["frac_floor"].item() == pytest.approx(1 - off.double().mean().item())


def test_gauges_are_of_what_is_left_to_expect() -> None:
    mates = torch.zeros(2, 11, dtype=torch.bool)
    mates[0, 2:4] = True  # two of three that are expected among ten
    gauges = debiasing_gauges(torch.zeros(2, 11), None, 0.3, 3.0, known_mates=mates)
    assert gauges["mean_eta"].item() == pytest.approx((1 / 8 + 3 / 10) / 2)
    assert gauges["expected_false_negatives"].item() == pytest.approx((1 + 3) / 2)


def test_gauges_are_means_over_the_anchors_that_have_a_negative() -> None:
    s = torch.zeros(2, 5)
    alone = torch.tensor([[False] * 5, [True] * 5])  # the second has class-mates alone
    for gauges in (
        debiasing_gauges(s[:1], None, 0.2, 3.0),
        debiasing_gauges(s, None, 0.2, 3.0, known_positives=alone),
    ):
        found = {name: value.item() for name, value in gauges.items()}
        assert found == pytest.approx(
            {
                "frac_floor": 0,
                "mean_weight": 1 / 0.8,
                "mean_eta": 0.2,
                "expected_false_negatives": 0.8,
                "uncorrected_loss": math.log(5),
            },
            abs=1e-6,
        )
    nobody = debiasing_gauges(torch.zeros(1, 1), None, 0.2, 3.0)
    assert nobody.pop("frac_floor").item() == 1
    assert {value.item() for value in nobody.values()} == {0.0}


def test_gauges_carry_no_gradient() -> None:
    """Also where the terms do: the trainer takes both from one computation."""
    terms = debiased_terms(rows(), None, 0.1, torch.tensor(2.0))
    assert terms.A.requires_grad
    assert not any(value.requires_grad or value.ndim for value in terms.gauges().values())
