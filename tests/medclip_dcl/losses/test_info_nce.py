import math

import pytest
import torch
from pytorch_metric_learning.losses import NTXentLoss
from torch.nn.functional import cross_entropy, normalize

from medclip_dcl.losses.info_nce import check_range, info_nce_loss


def test_uniform_weights_give_cross_entropy_and_its_gradient() -> None:
    s = torch.randn(8, 12, dtype=torch.float64, requires_grad=True)
    positive = torch.randint(0, 12, (8,))
    ours, theirs = info_nce_loss(s, positive), cross_entropy(s, positive)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(ours, s)[0], torch.autograd.grad(theirs, s)[0], atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_two_views_give_the_nt_xent_of_pytorch_metric_learning(temperature: float) -> None:
    B = 10
    raw = torch.randn(2 * B, 6, dtype=torch.float64, requires_grad=True)
    z = normalize(raw, dim=1)
    labels = torch.arange(B).repeat(2)
    theirs = NTXentLoss(temperature=temperature)(raw, labels)
    ours = info_nce_loss(
        z @ z.T / temperature,
        torch.arange(2 * B).roll(B),
        weights=1 - torch.eye(2 * B, dtype=torch.float64),
    )
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(ours, raw)[0], torch.autograd.grad(theirs, raw)[0], atol=1e-12, rtol=0
    )


def test_weights_multiply_the_exponential() -> None:
    s = torch.tensor([[1.0, 0.0, 2.0, -1.0]], dtype=torch.float64)
    weights = torch.tensor([[9.0, 0.5, 0.0, 3.0]], dtype=torch.float64)
    expected = math.log1p((0.5 * math.exp(0) + 3 * math.exp(-1)) / math.exp(1))
    assert info_nce_loss(s, weights=weights).item() == pytest.approx(expected, abs=1e-15)


def test_weights_receive_no_gradient() -> None:
    s, weights = torch.randn(4, 4, requires_grad=True), torch.rand(4, 4, requires_grad=True)
    info_nce_loss(s, weights=weights).backward()
    assert weights.grad is None


def test_huge_logits_stay_finite() -> None:
    s = torch.tensor([[-100.0, 100.0], [-100.0, 100.0]], requires_grad=True)
    rows = info_nce_loss(s, reduction="none")
    rows.sum().backward()
    assert rows.tolist() == [200.0, 0.0]
    assert s.grad.isfinite().all()


def test_a_compiled_loss_checks_its_values_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    check_range(torch.tensor([0.0, 0.9]), "eta", 1.0, "it is a share")
    for wrong in (-0.1, 1.0, math.nan):
        with pytest.raises(RuntimeError, match=r"eta is outside \[0, 1\); it is a share"):
            check_range(torch.tensor([0.5, wrong]), "eta", 1.0, "it is a share")
