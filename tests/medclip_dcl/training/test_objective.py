import dataclasses
import math

import pytest
import torch
from pydantic import ValidationError

from medclip_dcl.errors import ObjectiveError
from medclip_dcl.losses.debiased import debiased_contrastive_loss, debiasing_gauges
from medclip_dcl.losses.info_nce import info_nce_loss, sigmoid_loss
from medclip_dcl.losses.multi_positive import multi_positive_loss
from medclip_dcl.losses.relations import DIFFERENT, SAME, UNCLEAR
from medclip_dcl.training.objective import ObjectiveInputs, direction_loss, mean_output
from medclip_dcl.training.settings import ObjectiveConfig

GAUGES = {
    "frac_floor",
    "mean_weight",
    "mean_eta",
    "expected_false_negatives",
    "uncorrected_loss",
    "negatives_removed",
    "effective_negatives",
}


def inputs() -> ObjectiveInputs:
    """Six local anchors of a global batch of twelve, the second half of it."""
    s = 4 * torch.rand(6, 12, dtype=torch.float64) - 2
    s[:, 6:].diagonal().copy_(torch.linspace(-2, 6, 6))
    relation = torch.full((6, 12), DIFFERENT, dtype=torch.int8)
    relation[0, 1], relation[0, 2], relation[3, 0] = SAME, UNCLEAR, SAME
    return ObjectiveInputs(
        s=s,
        positive=torch.arange(6, 12),
        eta=torch.linspace(0, 0.2, 6, dtype=torch.float64),
        gamma=torch.tensor(math.sqrt(14)),
        bias=torch.tensor(-2.5, requires_grad=True),
        relation=relation,
        text_similarity=torch.rand(6, 12),
        threshold=0.6,
        label_overlap=torch.rand(6, 12) < 0.3,
        generator=torch.Generator().manual_seed(0),
    )


def test_default_is_the_papers_loss_with_its_gauges() -> None:
    batch = inputs()
    output = direction_loss(ObjectiveConfig(), batch)
    expected = debiased_contrastive_loss(batch.s, batch.positive, batch.eta, batch.gamma)
    assert torch.equal(output.loss, expected)
    gauges = debiasing_gauges(batch.s, batch.positive, batch.eta, batch.gamma)
    counts = {"negatives_removed": torch.tensor(0.0), "effective_negatives": torch.tensor(11.0)}
    assert output.gauges == gauges | counts
    assert output.gauges.keys() == GAUGES


def test_infonce_ignores_eta_and_says_so() -> None:
    batch = inputs()
    output = direction_loss(ObjectiveConfig(kind="infonce"), batch)
    torch.testing.assert_close(output.loss, info_nce_loss(batch.s, batch.positive))
    assert output.gauges["mean_eta"].item() == 0
    assert output.gauges["mean_weight"].item() == pytest.approx(1)
    torch.testing.assert_close(output.gauges["uncorrected_loss"], output.loss)


@pytest.mark.parametrize("floor", ["floor", "zero", "fallback"])
def test_debiased_loss_knows_same_images_and_leaves_unclear_ones_out(floor: str) -> None:
    batch = dataclasses.replace(inputs(), s=inputs().s.requires_grad_())
    settings = ObjectiveConfig(relation="claims", floor=floor)
    mates, kept = torch.zeros(6, 12, dtype=torch.bool), torch.ones(6, 12)
    mates[0, 1] = mates[3, 0] = True
    kept[0, 2] = 0
    expected = debiased_contrastive_loss(
        batch.s,
        batch.positive,
        batch.eta,
        batch.gamma,
        weights=kept,
        known_mates=mates,
        floor=floor,
    )
    output = direction_loss(settings, batch)
    assert torch.equal(output.loss, expected)
    slope = torch.autograd.grad(output.loss, batch.s)[0]
    assert slope[0, 2] == 0  # neither pushed nor pulled
    assert (slope[0, [3, 4, 5]] > 0).all()


def test_weights_of_a_rival_and_unclear_images_go_together() -> None:
    batch = inputs()
    overlap = batch.label_overlap
    assert overlap is not None
    settings = ObjectiveConfig(relation="claims", negatives="remove_labels", floor="fallback")
    kept = (~overlap).float()
    kept[0, 2] = 0
    mates = batch.relation == SAME
    expected = debiased_contrastive_loss(
        batch.s,
        batch.positive,
        batch.eta,
        batch.gamma,
        weights=kept,
        known_mates=mates,
        floor="fallback",
    )
    assert torch.equal(direction_loss(settings, batch).loss, expected)


def test_multipositive_pulls_same_and_leaves_unclear_out() -> None:
    batch = inputs()
    output = direction_loss(ObjectiveConfig(kind="multipositive", relation="claims"), batch)
    same = torch.zeros(6, 12, dtype=torch.bool)
    unclear = same.clone()
    same[0, 1] = same[3, 0] = unclear[0, 2] = True
    expected = multi_positive_loss(batch.s, same, unclear, positive=batch.positive)
    assert torch.equal(output.loss, expected)
    assert output.gauges.keys() == GAUGES


def test_sigmoid_learns_its_bias() -> None:
    batch = inputs()
    output = direction_loss(ObjectiveConfig(kind="sigmoid"), batch)
    assert torch.equal(output.loss, sigmoid_loss(batch.s, batch.positive, bias=-2.5))
    assert batch.bias is not None
    slope = torch.autograd.grad(output.loss, batch.bias)[0].item()
    # Twelve pairs an anchor are counted as positive by as much as their sigmoids, one is.
    expected = (batch.s - 2.5).sigmoid().sum(dim=1).mean().item() - 1
    assert slope == pytest.approx(expected, rel=1e-6)


NEGATIVES = ("remove_labels", "remove_similar", "resample_similar", "reweight_similar", "hard")


@pytest.mark.parametrize("negatives", NEGATIVES)
@pytest.mark.parametrize("kind", ["infonce", "debiased"])
def test_every_rival_changes_the_loss_and_stays_finite(kind: str, negatives: str) -> None:
    batch = dataclasses.replace(inputs(), s=inputs().s.requires_grad_())
    plain = direction_loss(ObjectiveConfig(kind=kind), batch).loss
    settings = ObjectiveConfig(kind=kind, negatives=negatives)
    loss = direction_loss(settings, batch).loss
    assert loss.isfinite()
    assert loss.item() != plain.item()
    assert torch.autograd.grad(loss, batch.s)[0].isfinite().all()


def test_gauges_tell_how_far_a_rival_is_from_treating_all_alike() -> None:
    batch = inputs()

    def gauges(**settings: object) -> list[float]:
        found = direction_loss(ObjectiveConfig.model_validate(settings), batch).gauges
        return [found[name].item() for name in ("negatives_removed", "effective_negatives")]

    # Eleven negatives an anchor, of which K = ceil(.9 * 11) = 10 or ceil(.2 * 11) = 3 are drawn.
    assert gauges(negatives="resample_similar") == pytest.approx([1 / 11, 10])
    assert gauges(negatives="resample_similar", remove_share=0.8) == pytest.approx([8 / 11, 3])
    assert gauges(negatives="reweight_similar", beta=0) == pytest.approx([0, 11])
    removed, effective = gauges(negatives="reweight_similar")
    assert [removed, effective] == gauges(negatives="reweight_similar", beta=5)
    assert removed == 0
    assert gauges(negatives="reweight_similar", beta=20)[1] < effective < 10
    assert gauges(negatives="hard", beta=0) == pytest.approx([0, 11])
    overlap = batch.label_overlap
    assert overlap is not None
    shared = overlap.sum(1) - overlap[:, 6:].diagonal().int()
    expected = [(shared / 11).mean().item(), (11 - shared).float().mean().item()]
    assert gauges(negatives="remove_labels") == pytest.approx(expected)
    # Two of the first anchor's class-mates and one of the fourth's are no negatives.
    assert gauges(relation="claims") == pytest.approx([3 / 66, 11 - 3 / 6])


@pytest.mark.parametrize(
    ("settings", "missing", "message"),
    [
        ({"relation": "claims"}, "relation", "needs relation"),
        ({"kind": "multipositive", "relation": "claims"}, "relation", "needs relation"),
        ({"kind": "sigmoid"}, "bias", "needs bias"),
        ({"negatives": "remove_labels"}, "label_overlap", "needs label_overlap"),
        ({"negatives": "remove_similar"}, "text_similarity", "needs text_similarity"),
        ({"negatives": "resample_similar"}, "generator", "hand it a generator"),
    ],
)
def test_input_that_the_settings_need_is_asked_for(
    settings: dict[str, str], missing: str, message: str
) -> None:
    batch = dataclasses.replace(inputs(), **{missing: None})
    with pytest.raises(ObjectiveError, match=message):
        direction_loss(ObjectiveConfig.model_validate(settings), batch)


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "multipositive"},
        {"kind": "infonce", "relation": "claims"},
        {"kind": "sigmoid", "negatives": "hard"},
        {"similar_by": "table"},
        {"similar_table": "vectors.parquet"},
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(
        ValidationError, match=r"needs a relation|knows no relation|takes no weig|go together"
    ):
        ObjectiveConfig.model_validate(settings)


def test_directions_are_joined_by_their_mean() -> None:
    batch = inputs()
    first = direction_loss(ObjectiveConfig(), batch)
    second = direction_loss(
        ObjectiveConfig(), dataclasses.replace(batch, eta=torch.zeros(6, dtype=torch.float64))
    )
    joined = mean_output([first, second])
    torch.testing.assert_close(joined.loss, (first.loss + second.loss) / 2)
    torch.testing.assert_close(joined.gauges["mean_eta"], torch.tensor(0.05, dtype=torch.float64))
