import math

import pytest
import torch
from pytorch_metric_learning.losses import NTXentLoss, SupConLoss
from torch import Tensor
from torch.nn import functional

from benchmarks.fixtures.views import (
    GLOBAL_BATCH,
    tiny_view_encoder,
    view_batch,
)
from medclip_dcl.errors import ConfigError
from medclip_dcl.image_only.run import SimCLRObjective
from medclip_dcl.image_only.settings import ViewsConfig
from medclip_dcl.training.objective import ObjectiveOutput
from medclip_dcl.training.settings import ObjectiveConfig

B, N = GLOBAL_BATCH, 2 * (GLOBAL_BATCH - 1)
GAMMA = torch.tensor(math.sqrt(2.0))
ETA = torch.linspace(0, 0.2, B)


def vectors(views: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return functional.normalize(torch.randn(views, B, 5, generator=generator), dim=-1)


def output_of(z: Tensor, anchors: str = "both", **objective: object) -> ObjectiveOutput:
    views = ViewsConfig.model_validate({"anchors": anchors, "M": len(z) - 1})
    loss_module = SimCLRObjective(ObjectiveConfig.model_validate(objective), views)
    return loss_module(GAMMA, z, view_batch(views=len(z)))


def test_without_eta_the_loss_is_simclr_s() -> None:
    z = vectors()
    pair = torch.arange(B).repeat(2)
    expected = NTXentLoss(temperature=0.5)(z.flatten(0, 1), pair)
    found = output_of(z, kind="infonce")
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(found.gauges["uncorrected_loss"], expected)


def test_with_eta_the_loss_is_the_dcl_paper_s_of_both_views() -> None:
    z = vectors()
    exps = (z.flatten(0, 1) @ z.flatten(0, 1).T / 0.5).exp()
    losses = []
    for row in range(2 * B):
        partner = (row + B) % (2 * B)
        negatives = [exps[row, col] for col in range(2 * B) if col not in {row, partner}]
        assert len(negatives) == N
        eta = ETA[row % B]
        g = (torch.stack(negatives).mean() - eta * exps[row, partner]) / (1 - eta)
        g = g.clamp(min=math.exp(-2))
        losses.append(-torch.log(exps[row, partner] / (exps[row, partner] + N * g)))
    found = output_of(z)
    torch.testing.assert_close(found.loss, torch.stack(losses).mean())
    expected = (ETA * N).mean().item()
    assert found.gauges["expected_false_negatives"].item() == pytest.approx(expected)


def test_first_views_can_be_the_only_anchors() -> None:
    z = vectors()
    expected = functional.cross_entropy(2 * z[0] @ z[1].T, torch.arange(B))
    torch.testing.assert_close(output_of(z, "first", kind="infonce").loss, expected)


@pytest.mark.parametrize("anchors", ["both", "first"])
def test_further_views_correct_their_own_anchor_and_are_nobody_s_negatives(anchors: str) -> None:
    z = vectors(views=4)
    found = output_of(z, anchors)
    s = 2 * torch.einsum("vid,wjd->viwj", z, z)
    losses = []
    for view in (0, 1) if anchors == "both" else (0,):
        for row in range(B):
            if anchors == "both":
                negatives = torch.cat(
                    [s[view, row, other, [j for j in range(B) if j != row]] for other in (0, 1)]
                )
            else:
                negatives = s[0, row, 1, [j for j in range(B) if j != row]]
            positives = s[view, row, [1 - view, 2, 3], row]
            count, eta = len(negatives), ETA[row]
            g = (negatives.exp().mean() - eta * positives.exp().mean()) / (1 - eta)
            losses.append(torch.log1p(count * g.clamp(min=math.exp(-2)) / positives[0].exp()))
    torch.testing.assert_close(found.loss, torch.stack(losses).mean())


def test_images_of_the_anchor_s_class_can_leave_the_negatives() -> None:
    z = vectors()
    labels = torch.arange(B) % 3
    logits = 2 * z.flatten(0, 1) @ z.flatten(0, 1).T
    partner = torch.arange(2 * B).roll(B)
    same = labels.repeat(2).unsqueeze(1) == labels.repeat(2)
    same[torch.arange(2 * B), partner] = False  # the partner stays; the anchor itself goes
    expected = functional.cross_entropy(logits.masked_fill(same, -torch.inf), partner)
    found = output_of(z, kind="infonce", negatives="remove_labels")
    torch.testing.assert_close(found.loss, expected)


def test_class_mates_as_positives_are_supervised_contrast() -> None:
    z = vectors()
    labels = (torch.arange(B) % 3).repeat(2)
    expected = SupConLoss(temperature=0.5)(z.flatten(0, 1), labels)
    found = output_of(z, kind="multipositive", relation="labels")
    torch.testing.assert_close(found.loss, expected)


def test_the_eta_of_an_image_touches_its_own_views_alone() -> None:
    z = vectors()
    objective = SimCLRObjective(ObjectiveConfig(), ViewsConfig())
    batch = view_batch(eta=0.0)
    plain = objective(GAMMA, z, batch).loss
    batch.eta[2] = 0.1
    row = torch.logsumexp(2 * z.flatten(0, 1) @ z.flatten(0, 1).T, dim=1)
    change = 0.0
    for index in (2, 2 + B):
        own, partner = index, (index + B) % (2 * B)
        s = 2 * z.flatten(0, 1)[index] @ z.flatten(0, 1).T
        A = (row[index].exp() - s[own].exp() - s[partner].exp()) / s[partner].exp()
        change += (torch.log1p((A - N * 0.1) / 0.9) - torch.log1p(A)).item()
    found = objective(GAMMA, z, batch).loss - plain
    assert found.item() == pytest.approx(change / (2 * B), rel=1e-4)


def test_the_model_sees_every_view_of_the_batch() -> None:
    encoder = tiny_view_encoder().eval()
    objective = SimCLRObjective(ObjectiveConfig(), ViewsConfig(M=2))
    output = objective.compute_loss(encoder, encoder, view_batch(views=3))
    output.loss.backward()
    assert output.loss.isfinite()
    assert encoder.gamma.grad is None
    assert all(p.grad is not None for p in encoder.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    "settings", [{"negatives": "remove_similar"}, {"relation": "claims"}, {"relation": "truth"}]
)
def test_an_objective_that_reads_texts_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="reads texts"):
        SimCLRObjective(ObjectiveConfig.model_validate(settings), ViewsConfig())


def test_views_that_no_correction_reads_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"views.M 4"):
        SimCLRObjective(ObjectiveConfig(kind="infonce"), ViewsConfig(M=4))
