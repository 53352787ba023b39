"""The multi-positive loss against numbers worked out by hand."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from medclip_dcl.losses.multi_positive import multi_positive_loss

LOG2, LOG3 = math.log(2.0), math.log(3.0)


def mask(*rows: str) -> torch.Tensor:
    """One string a row: `x` marks a True."""
    return torch.tensor([[letter == "x" for letter in row] for row in rows])


def test_is_cross_entropy_where_nobody_is_a_mate() -> None:
    s = torch.randn(5, 5, dtype=torch.float64)
    loss = multi_positive_loss(s, torch.zeros(5, 5, dtype=torch.bool))
    torch.testing.assert_close(loss, cross_entropy(s, torch.arange(5)))


def test_literal_two_positives_and_one_negative() -> None:
    # exp s = 1, 2, 3: -(log 1/6 + log 2/6) / 2
    s = torch.tensor([[0.0, LOG2, LOG3]])
    loss = multi_positive_loss(s, mask(".x."))
    assert loss.item() == pytest.approx(-(math.log(1 / 6) + math.log(2 / 6)) / 2)


def test_excluded_leave_numerator_and_denominator() -> None:
    # candidate 2 is gone: -log 1/3
    s = torch.tensor([[0.0, LOG2, LOG3]])
    loss = multi_positive_loss(s, mask("..."), mask("..x"))
    assert loss.item() == pytest.approx(LOG3)


def test_positives_stay_in_the_denominator() -> None:
    # two candidates, both positive, equal scores: -(log 1/2 + log 1/2) / 2, not 0
    assert multi_positive_loss(torch.zeros(1, 2), mask("xx")).item() == pytest.approx(LOG2)


def test_own_image_is_a_positive_whatever_the_masks_say() -> None:
    s = torch.tensor([[0.0, LOG2, LOG3]])
    reported = multi_positive_loss(s, mask("x.."), mask("..."))
    excluded = multi_positive_loss(s, mask("..."), mask("x.."))
    torch.testing.assert_close(excluded, reported)


def test_a_mate_that_is_also_excluded_stays_a_mate() -> None:
    s = torch.randn(1, 3)
    torch.testing.assert_close(
        multi_positive_loss(s, mask(".x."), mask(".x.")), multi_positive_loss(s, mask(".x."))
    )


def test_positive_may_stand_in_any_column() -> None:
    s = torch.tensor([[0.0, LOG2, LOG3], [0.0, LOG2, LOG3]])
    loss = multi_positive_loss(
        s, mask("...", "..."), positive=torch.tensor([2, 1]), reduction="none"
    )
    torch.testing.assert_close(loss, torch.tensor([LOG2, LOG3]))


def test_alone_in_the_denominator_gives_zero_loss_and_zero_gradient() -> None:
    s = torch.randn(1, 3, requires_grad=True)
    loss = multi_positive_loss(s, mask("..."), mask(".xx"))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(s.grad, torch.zeros(1, 3))


def test_gradient_is_that_of_the_formula() -> None:
    s = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    same, excluded = mask("..x.", "x...", "...."), mask("...x", "....", "xx.x")
    assert torch.autograd.gradcheck(lambda x: multi_positive_loss(x, same, excluded), s)


def test_large_scores_stay_finite() -> None:
    s = torch.tensor([[-100.0, 100.0], [100.0, -100.0]], requires_grad=True)
    loss = multi_positive_loss(s, mask("..", ".."))
    loss.backward()
    assert loss.item() == pytest.approx(200.0)
    assert torch.isfinite(s.grad).all()


def test_half_precision_is_computed_in_float32_under_autocast() -> None:
    s = torch.randn(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = multi_positive_loss(s.bfloat16(), torch.zeros(4, 4, dtype=torch.bool))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, cross_entropy(s.bfloat16().float(), torch.arange(4)))
