import math

import pytest
import torch

from medclip_dcl.losses.debiased import debiased_contrastive_loss
from pipelines.false_negatives import correction, same_correction


def test_the_paper_s_constants_at_its_batch_by_hand() -> None:
    # 63 * .05 = 3.15; log 4.15 = 1.42; of log 64 = 4.16; 4.15 / .95 = 4.4
    found = correction(0.05, 64)
    assert found.expected == pytest.approx(3.15)
    assert found.edge == pytest.approx(1.42, abs=5e-3)
    assert found.reach == pytest.approx(1.42 / 4.16, abs=2e-3)
    assert found.largest_weight == pytest.approx(4.4, abs=0.05)


@pytest.mark.parametrize("eta", [0.01, 0.1, 0.2])
@pytest.mark.parametrize("batch", [16, 64])
def test_the_loss_loses_its_gradient_at_the_edge(eta: float, batch: int) -> None:
    """Row with an uncorrected loss just above, and just below, the edge."""
    edge = correction(eta, batch).edge
    for beyond, learns in ((1e-3, True), (-1e-3, False)):
        ratio = math.expm1(edge + beyond)  # sum of exp(s_n - s_positive)
        s = torch.full((1, batch), math.log(ratio / (batch - 1)), dtype=torch.float64)
        s[0, 0] = 0.0
        s = s + 20.0
        s.requires_grad_()
        loss = debiased_contrastive_loss(
            s, torch.tensor([0]), eta, torch.tensor(10.0, dtype=torch.float64)
        )
        loss.backward()
        moved = float(s.grad[0, 1:].abs().sum())
        assert (moved > 0.1) == learns


def test_the_weight_at_the_edge_is_the_largest() -> None:
    eta, batch = 0.1, 64
    found = correction(eta, batch)

    def weight(loss: float) -> float:
        return math.exp(loss) / (math.exp(loss) - eta * batch)

    assert weight(found.edge) == pytest.approx(found.largest_weight)
    assert weight(found.edge + 0.5) < found.largest_weight


def test_a_scaled_eta_expects_as_many_false_negatives() -> None:
    assert same_correction(0.2, 64, 64) == 0.2
    assert same_correction(0.2, 64, 512) == pytest.approx(0.2 * 63 / 511)
    scaled = same_correction(0.2, 64, 512)
    assert correction(scaled, 512).expected == pytest.approx(correction(0.2, 64).expected)
