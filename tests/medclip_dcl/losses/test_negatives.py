import pytest
import torch

from medclip_dcl.losses import negatives

POSITIVE = torch.tensor([0, 2, 1])
SIMILARITY = torch.tensor(
    [[1.0, 0.95, 0.5, -0.2], [0.95, 0.4, 1.0, 0.1], [0.5, 1.0, 0.0, 0.9]], requires_grad=True
)


def test_a_shared_label_or_a_close_text_removes_a_negative_and_never_the_positive():
    overlap = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 0], [1, 1, 1, 1]]).bool()
    assert negatives.remove_by_labels(overlap, POSITIVE).tolist() == [
        [0, 0, 1, 1],
        [1, 1, 0, 1],
        [0, 0, 0, 0],
    ]
    assert negatives.remove_by_similarity(SIMILARITY, POSITIVE, 0.9).tolist() == [
        [0, 0, 1, 1],
        [0, 1, 0, 1],
        [1, 0, 1, 1],
    ]


# 1 - 0.7 is a little above 0.3.
@pytest.mark.parametrize(("share", "K"), [(0.1, 1), (1 - 0.7, 3), (0.45, 5), (0.5, 5), (1.0, 10)])
def test_resampling_keeps_k_of_n_at_weight_n_over_k_by_its_generator(share: float, K: int) -> None:
    text, positive = torch.rand(6, 11), torch.arange(6)
    generators = (torch.Generator().manual_seed(seed) for seed in (1, 1, 2))
    weights, again, other = (
        negatives.resample_by_similarity(text, positive, 2.0, share, each) for each in generators
    )
    assert (weights > 0).sum(1).tolist() == [K] * 6
    torch.testing.assert_close(weights.sum(1), torch.full((6,), 10.0))
    assert not weights[torch.arange(6), positive].any()
    assert torch.equal(weights, again)
    assert torch.equal(weights, other) == (K == 10)


def test_resampling_prefers_far_texts_also_where_their_odds_would_underflow():
    text = torch.cat([torch.ones(2000, 1), torch.ones(2000, 1), torch.zeros(2000, 1)], dim=1)
    positive = torch.zeros(2000, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    drawn = negatives.resample_by_similarity(text, positive, 2.0, 0.5, generator)
    far = (drawn[:, 2] > 0).float().mean().item()
    assert far == pytest.approx(1 / (1 + torch.tensor(-2.0).exp().item()), abs=0.03)
    # e^{-100} and e^{100} beyond float32; the far text is drawn always, the close one never.
    text = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    drawn = negatives.resample_by_similarity(text, torch.tensor([0]), 100.0, 2 / 3, generator)
    assert drawn.tolist() == [[0, 0, 1.5, 1.5]]


def test_gauges_of_weights_by_hand() -> None:
    s = torch.zeros(2, 4)
    weights = torch.tensor([[9.0, 2, 1, 0], [1, 9, 1, 1]])  # the positive's is not read
    for given, excluded, removed, effective in (
        # One of three weighs nothing, none of three; (2 + 1)^2 / (4 + 1) = 1.8 and 3.
        (weights, None, (1 / 3 + 0) / 2, (1.8 + 3) / 2),
        (weights / 10, None, (1 / 3 + 0) / 2, (1.8 + 3) / 2),  # their size cancels out
        (weights, weights == 2, (2 / 3 + 0) / 2, (1 + 3) / 2),
        (torch.zeros(2, 4), None, 1, 0),
    ):
        gauges = negatives.negative_gauges(s, torch.tensor([0, 1]), given, excluded)
        expected = {"negatives_removed": removed, "effective_negatives": effective}
        assert {name: value.item() for name, value in gauges.items()} == pytest.approx(expected)
    alone = negatives.negative_gauges(torch.zeros(1, 1), torch.tensor([0]))
    assert [value.item() for value in alone.values()] == [1, 0]


@pytest.mark.parametrize("beta", [0.0, 1.0, 5.0])
def test_softmax_weights_sum_to_the_number_of_negatives(beta: float) -> None:
    weights = negatives.reweight_by_similarity(SIMILARITY, POSITIVE, beta)
    torch.testing.assert_close(weights.sum(1), torch.full((3,), 3.0))
    assert not weights[torch.arange(3), POSITIVE].any()
    assert not weights.requires_grad
    assert (weights[0, 1] < weights[0, 2] < weights[0, 3]) == (beta > 0)
    if beta == 0:
        assert sorted(weights.flatten().tolist()) == [0.0] * 3 + [1.0] * 9


def test_single_pair_has_no_negatives_to_weigh() -> None:
    one, positive = torch.ones(1, 1), torch.tensor([0])
    generator = torch.Generator()
    assert negatives.reweight_by_similarity(one, positive, 1.0).tolist() == [[0.0]]
    assert negatives.resample_by_similarity(one, positive, 1.0, 0.5, generator).tolist() == [[0.0]]
