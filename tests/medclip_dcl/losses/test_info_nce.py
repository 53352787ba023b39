"""InfoNCE against cross entropy and others' code, the multi-positive loss against its formula."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.losses import NTXentLoss
from torch.nn.functional import cross_entropy, normalize

from medclip_dcl.losses.info_nce import check_range, info_nce_loss, multi_positive_loss
from tests.medclip_dcl.losses.test_debiased import assert_same


def test_uniform_weights_give_cross_entropy_and_its_gradient() -> None:
    s = torch.randn(8, 12, dtype=torch.float64, requires_grad=True)
    positive = torch.randint(0, 12, (8,))
    ours, theirs = info_nce_loss(s, positive), cross_entropy(s, positive)
    assert_same(ours, theirs, s)


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_two_views_give_the_nt_xent_of_pytorch_metric_learning(temperature: float) -> None:
    B = 10
    raw = torch.randn(2 * B, 6, dtype=torch.float64, requires_grad=True)
    z = normalize(raw, dim=1)
    theirs = NTXentLoss(temperature=temperature)(raw, torch.arange(B).repeat(2))
    not_self = 1 - torch.eye(2 * B, dtype=torch.float64)
    ours = info_nce_loss(z @ z.T / temperature, torch.arange(2 * B).roll(B), weights=not_self)
    assert_same(ours, theirs, raw)


def test_weights_multiply_the_exponential_and_receive_no_gradient():
    s = torch.tensor([[1.0, 0.0, 2.0, -1.0]], dtype=torch.float64)
    weights = torch.tensor([[9.0, 0.5, 0.0, 3.0]], dtype=torch.float64)
    expected = math.log1p((0.5 * math.exp(0) + 3 * math.exp(-1)) / math.exp(1))
    assert info_nce_loss(s, weights=weights).item() == pytest.approx(expected, abs=1e-15)
    s, weights = torch.randn(4, 4, requires_grad=True), torch.rand(4, 4, requires_grad=True)
    info_nce_loss(s, weights=weights).backward()
    assert weights.grad is None


def test_huge_logits_stay_finite():
    s = torch.tensor([[-100.0, 100.0], [-100.0, 100.0]], requires_grad=True)
    rows = info_nce_loss(s, reduction="none")
    rows.sum().backward()
    assert rows.tolist() == [200.0, 0.0]
    assert s.grad.isfinite().all()
    s = torch.tensor([[-100.0, 100.0], [100.0, -100.0]], requires_grad=True)
    loss = multi_positive_loss(s, torch.zeros(2, 2, dtype=torch.bool))
    loss.backward()
    assert loss.item() == pytest.approx(200.0)
    assert torch.isfinite(s.grad).all()


def test_a_compiled_loss_checks_its_values_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    check_range(torch.tensor([0.0, 0.9]), "eta", 1.0, "it is a share")
    for wrong in (-0.1, 1.0, math.nan):
        with pytest.raises(RuntimeError, match=r"eta is outside \[0, 1\); it is a share"):
            check_range(torch.tensor([0.5, wrong]), "eta", 1.0, "it is a share")


def written_out(s, same, excluded, positive) -> list[float]:
    """Mean of -log p over the own image and its mates; p is of them and of all not excluded."""
    losses = []
    for row, own in enumerate(positive.tolist()):
        positives = {own, *same[row].nonzero().flatten().tolist()}
        left = positives | set((~excluded[row]).nonzero().flatten().tolist())
        total = math.log(sum(math.exp(s[row, column]) for column in left))
        losses.append(sum(total - s[row, column].item() for column in positives) / len(positives))
    return losses


@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.0, 0.3, 0.7, 1.0]))
@settings(max_examples=100, deadline=None)
def test_it_is_the_formula_whatever_the_masks_say(seed: int, share: float) -> None:
    """Nobody, some or all may be mates, excluded, or both; the own image is always a positive."""
    generator = torch.Generator().manual_seed(seed)
    s = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    same, excluded = (torch.rand(2, 3, 5, generator=generator) < share).unbind()
    positive = torch.randint(0, 5, (3,), generator=generator)
    rows = multi_positive_loss(s, same, excluded, positive=positive, reduction="none")
    assert rows.tolist() == pytest.approx(written_out(s, same, excluded, positive), abs=1e-12)


def test_two_positives_and_one_negative_by_hand() -> None:
    # exp s = 1, 2, 3: -(log 1/6 + log 2/6) / 2
    s = torch.tensor([[0.0, math.log(2), math.log(3)]])
    loss = multi_positive_loss(s, torch.tensor([[False, True, False]]))
    assert loss.item() == pytest.approx(-(math.log(1 / 6) + math.log(2 / 6)) / 2)


def test_gradient_is_that_of_the_formula_and_zero_for_who_is_alone() -> None:
    s = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    same, excluded = torch.zeros(2, 3, 4, dtype=torch.bool).unbind()
    same[0, 2] = same[1, 0] = excluded[0, 3] = True
    excluded[2, [0, 1, 3]] = True
    assert torch.autograd.gradcheck(lambda x: multi_positive_loss(x, same, excluded), s)
    rows = multi_positive_loss(s, same, excluded, reduction="none")
    assert rows[2].item() == 0
    assert not torch.autograd.grad(rows[2], s)[0].any()


def test_half_precision_is_computed_in_float32_under_autocast() -> None:
    s = torch.randn(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = multi_positive_loss(s.bfloat16(), torch.zeros(4, 4, dtype=torch.bool))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, cross_entropy(s.bfloat16().float(), torch.arange(4)))
