import dataclasses
import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional

from medclip_dcl.core.errors import ObjectiveError
from medclip_dcl.losses.debiased import debiased_contrastive_loss, debiasing_gauges
from medclip_dcl.losses.info_nce import multi_positive_loss
from medclip_dcl.losses.relations import DIFFERENT, SAME, UNCLEAR, encode_claims
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.training.dataset import ImageTextBatch, jitter
from medclip_dcl.training.objective import (
    ContrastiveObjective,
    ObjectiveInputs,
    ObjectiveOutput,
    direction_loss,
    mean_output,
)
from medclip_dcl.training.settings import ObjectiveConfig
from tests.medclip_dcl.losses.test_relations import claims
from tests.support.tiny_models import pair_batch, tiny_dual_encoder


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
        relation=relation,
        text_similarity=torch.rand(6, 12),
        threshold=0.6,
        label_overlap=torch.rand(6, 12) < 0.3,
        generator=torch.Generator().manual_seed(0),
    )


def debiased(batch: ObjectiveInputs, **more: Any) -> torch.Tensor:
    return debiased_contrastive_loss(batch.s, batch.positive, batch.eta, batch.gamma, **more)


def test_default_is_the_papers_loss_with_its_gauges() -> None:
    batch = inputs()
    output = direction_loss(ObjectiveConfig(), batch)
    assert torch.equal(output.loss, debiased(batch))
    gauges = debiasing_gauges(batch.s, batch.positive, batch.eta, batch.gamma)
    counts = {"negatives_removed": torch.tensor(0.0), "effective_negatives": torch.tensor(11.0)}
    assert output.gauges == gauges | counts


def test_same_images_leave_the_negatives_and_unclear_ones_the_loss() -> None:
    batch = inputs()
    same, kept = batch.relation == SAME, batch.relation != UNCLEAR
    for negatives, weights in (("all", kept), ("remove_labels", kept & ~batch.label_overlap)):
        for floor in ("floor", "zero", "fallback"):
            settings = ObjectiveConfig(relation="claims", negatives=negatives, floor=floor)
            expected = debiased(batch, weights=weights.float(), known_mates=same, floor=floor)
            assert torch.equal(direction_loss(settings, batch).loss, expected)
    output = direction_loss(ObjectiveConfig(kind="multipositive", relation="claims"), batch)
    expected = multi_positive_loss(batch.s, same, ~kept, positive=batch.positive)
    assert torch.equal(output.loss, expected)
    assert output.gauges.keys() == direction_loss(ObjectiveConfig(), batch).gauges.keys()


def test_directions_count_alike_and_a_gauge_is_the_mean_of_those_that_have_it() -> None:
    first = ObjectiveOutput(torch.tensor(1.0), {"a": torch.tensor(0.25), "b": torch.tensor(3.0)})
    both = mean_output([first, ObjectiveOutput(torch.tensor(4.0), {"a": torch.tensor(0.5)})])
    assert both.loss.item() == 2.5
    assert {name: value.item() for name, value in both.gauges.items()} == {"a": 0.375, "b": 3}


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
    assert removed == 0
    assert gauges(negatives="reweight_similar", beta=20)[1] < effective < 10
    overlap = batch.label_overlap
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
        ({"negatives": "remove_labels"}, "label_overlap", "needs label_overlap"),
        ({"negatives": "remove_similar"}, "text_similarity", "needs text_similarity"),
        ({"negatives": "resample_similar"}, "generator", "hand it a generator"),
    ],
)
def test_input_that_the_settings_need_is_asked_for(settings, missing, message):
    batch = dataclasses.replace(inputs(), **{missing: None})
    with pytest.raises(ObjectiveError, match=message):
        direction_loss(ObjectiveConfig.model_validate(settings), batch)


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "multipositive"},
        {"kind": "infonce", "relation": "claims"},
        {"kind": "multipositive", "relation": "claims", "negatives": "remove_labels"},
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match=r"needs a relation|knows no relation|takes no weig"):
        ObjectiveConfig.model_validate(settings)


def encoded(batch: ImageTextBatch) -> tuple[DualEncoder, torch.Tensor, torch.Tensor]:
    model = tiny_dual_encoder().eval()
    pixels = jitter(batch.crops, batch.brightness, batch.contrast)
    return model, *model(pixels, batch.input_ids, batch.attention_mask)


def loss_of(
    batch: ImageTextBatch, threshold: float = 1.0, **settings: object
) -> tuple[float, dict[str, torch.Tensor]]:
    objective = ContrastiveObjective(ObjectiveConfig.model_validate(settings), 0, threshold)
    output = objective(*encoded(batch), batch)
    return output.loss.item(), output.gauges


def scores(batch: ImageTextBatch) -> torch.Tensor:
    model, regions, sentences = encoded(batch)
    return (model.gamma**2 * model.score(regions, sentences)).detach()


def test_without_eta_the_loss_is_cross_entropy_and_both_directions_are_their_mean():
    batch = pair_batch(6, eta=0.0)
    for name, s in (("t2i", scores(batch)), ("i2t", scores(batch).T)):
        expected = functional.cross_entropy(s, torch.arange(6)).item()
        assert loss_of(batch, directions=name)[0] == pytest.approx(expected, rel=1e-5)
    batch = pair_batch(6)
    parts = [loss_of(batch, directions=name)[0] for name in ("t2i", "i2t")]
    joined, _ = loss_of(batch, directions="both", image_anchor="same")
    assert joined == pytest.approx(sum(parts) / 2, rel=1e-6)
    assert parts[0] != parts[1]


def test_eta_belongs_to_the_sentence_of_the_anchor() -> None:
    plain = pair_batch(6, eta=0.0)
    eta = torch.zeros(6)
    eta[2] = 0.2
    s, diagonal = scores(plain), torch.arange(6)
    row = functional.cross_entropy(s, diagonal, reduction="none")
    # Off the floor L = log1p((exp(InfoNCE) - 1 - N eta) / (1 - eta)).
    expected = row.clone()
    expected[2] = torch.log1p((row[2].exp() - 1 - 5 * 0.2) / 0.8)
    loss, _ = loss_of(dataclasses.replace(plain, eta=eta))
    assert loss == pytest.approx(expected.mean().item(), rel=1e-5)


SENTENCES = encode_claims([claims("Edema"), claims("Edema"), claims("Fracture"), claims()])


def related_batch(reports: torch.Tensor) -> ImageTextBatch:
    columns = {"sentence_codes": SENTENCES, "report_codes": reports}
    return dataclasses.replace(pair_batch(4), columns=columns)


def test_the_relation_of_an_image_anchor_is_that_of_the_sentences_to_its_report() -> None:
    both = encode_claims([claims("Edema", "Fracture")])
    reports = torch.cat([SENTENCES[:1], both, SENTENCES[2:]])
    batch = related_batch(reports)
    # Sentences 0 and 1 are true of images 0 and 1, sentence 2 of images 1 and 2.
    _, of_texts = loss_of(batch, relation="claims", directions="t2i")
    _, of_images = loss_of(batch, relation="claims", directions="i2t")
    assert of_texts["mates"].item() == pytest.approx((1 + 1 + 1 + 0) / 4)
    assert of_images["mates"].item() == pytest.approx((1 + 2 + 0 + 0) / 4)
    assert loss_of(batch, relation="claims")[0] != loss_of(batch)[0]


def test_own_image_anchors_are_infonce_whatever_is_known_of_the_pairs() -> None:
    images, _ = loss_of(pair_batch(4), kind="infonce", directions="i2t")
    relations = {"kind": "multipositive", "relation": "claims"}
    for reports in (SENTENCES, SENTENCES.flip(0)):
        batch = related_batch(reports)
        for settings in (relations, {"relation": "claims"}):
            texts, gauges = loss_of(batch, directions="t2i", **settings)
            both, of_both = loss_of(batch, directions="both", **settings)
            assert both == pytest.approx((texts + images) / 2, rel=1e-6)
            assert gauges == of_both


# Texts 0 and 1 say the same (cosine 1), 2 is at 60 degrees to them (cosine .5), 3 opposite.
VECTORS = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5], [-1.0, 0.0]])
LABELS = torch.tensor([[1, 0], [1, 1], [0, 1], [0, 0]]).bool()


@pytest.mark.parametrize(
    ("negatives", "columns", "close"),
    [
        ("remove_similar", {"text_vectors": VECTORS}, [(0, 1), (1, 0)]),
        ("remove_labels", {"labels": LABELS}, [(0, 1), (1, 0), (1, 2), (2, 1)]),
    ],
)
def test_close_texts_and_shared_labels_leave_the_negatives(negatives, columns, close) -> None:
    batch = dataclasses.replace(pair_batch(4, eta=0.0), columns=columns)
    s = scores(batch)
    for pair in close:
        s[pair] = -torch.inf
    loss, gauges = loss_of(batch, threshold=0.6, kind="infonce", negatives=negatives)
    expected = functional.cross_entropy(s, torch.arange(4))
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert gauges["negatives_removed"].item() == pytest.approx(len(close) / 12)
    assert gauges["effective_negatives"].item() == pytest.approx((12 - len(close)) / 4)
