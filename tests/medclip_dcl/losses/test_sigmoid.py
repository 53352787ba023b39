import math

import pytest
import torch

from medclip_dcl.losses.sigmoid import sigmoid_loss


def test_loss_of_two_pairs_by_hand() -> None:
    s = torch.tensor([[3.0, -1.0], [0.5, 2.0]], dtype=torch.float64)

    def cost(logit: float) -> float:
        return math.log1p(math.exp(-logit))

    expected = (cost(3 - 1) + cost(1 + 1) + cost(-0.5 + 1) + cost(2 - 1)) / 2
    assert sigmoid_loss(s, bias=-1.0).item() == pytest.approx(expected, abs=1e-14)


def test_positive_may_stand_anywhere() -> None:
    s = torch.randn(3, 5, dtype=torch.float64)
    columns = torch.tensor([4, 0, 2])
    order = torch.tensor([4, 0, 2, 1, 3])  # brings the positives onto the diagonal
    torch.testing.assert_close(
        sigmoid_loss(s, columns, bias=-2.0), sigmoid_loss(s[:, order], bias=-2.0)
    )


def test_pairs_do_not_share_a_denominator() -> None:
    s = torch.randn(4, 4, requires_grad=True)
    gradient = torch.autograd.grad(sigmoid_loss(s, bias=0.0), s)[0]
    negative = s.detach()[0, 1]
    assert gradient[0, 1].item() == pytest.approx(negative.sigmoid().item() / 4, rel=1e-6)
