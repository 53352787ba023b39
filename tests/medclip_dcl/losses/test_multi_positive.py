"""The multi-positive loss against its formula, one candidate after the other."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from medclip_dcl.losses.info_nce import multi_positive_loss


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


def test_large_scores_stay_finite() -> None:
    s = torch.tensor([[-100.0, 100.0], [100.0, -100.0]], requires_grad=True)
    loss = multi_positive_loss(s, torch.zeros(2, 2, dtype=torch.bool))
    loss.backward()
    assert loss.item() == pytest.approx(200.0)
    assert torch.isfinite(s.grad).all()


def test_half_precision_is_computed_in_float32_under_autocast() -> None:
    s = torch.randn(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = multi_positive_loss(s.bfloat16(), torch.zeros(4, 4, dtype=torch.bool))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, cross_entropy(s.bfloat16().float(), torch.arange(4)))
