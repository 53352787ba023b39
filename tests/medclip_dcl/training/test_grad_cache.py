"""A batch that is encoded chunk by chunk: the gradients of one that is encoded at once."""

import dataclasses
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.rng import RngStream, seed_for
from medclip_dcl.losses.relations import encode_claims
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.text.labeler.labels import ReportLabels
from medclip_dcl.training.dataset import ImageTextBatch
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.optim import set_training_mode
from medclip_dcl.training.settings import ObjectiveConfig, TrainConfig
from medclip_dcl.training.step import TrainStep, backward_in_chunks
from medclip_dcl.training.validation import validation_loss
from tests.support.tiny_models import pair_batch, tiny_dual_encoder

PAIRS, CHUNK = 10, 3
OBJECTIVES: list[dict[str, Any]] = [
    {},
    {"directions": "both", "image_anchor": "same", "floor": "zero"},
    {"kind": "infonce"},
    {"kind": "multipositive", "relation": "claims", "directions": "both"},
    {"relation": "claims"},
    {"negatives": "remove_labels"},
    {"negatives": "reweight_similar"},
    {"negatives": "resample_similar"},
]


def supervised_batch(mine: slice | None = None, pairs: int = PAIRS) -> ImageTextBatch:
    """Pairs with claims, labels and vectors, in two or three kinds."""
    said = [
        ReportLabels({name: frozenset({side})}, frozenset(), frozenset(), normal=False)
        for name, side in (("Edema", "left"), ("Pneumonia", "right"), ("Edema", "right"))
    ]
    said = [said[number % 3] for number in range(pairs)]
    codes = encode_claims(said)
    vectors = nn.functional.normalize(torch.randn(pairs, 5, generator=torch.manual_seed(0)), dim=1)
    return dataclasses.replace(
        pair_batch(pairs, mine=mine),
        columns={
            "sentence_codes": codes,
            "report_codes": codes,
            "labels": torch.arange(5) == torch.arange(pairs)[:, None] % 5,
            "text_vectors": vectors,
        },
    )


def make_encoder(dropout: float = 0.0) -> DualEncoder:
    encoder = tiny_dual_encoder()
    set_training_mode(encoder, freeze_batchnorm=True)
    for module in encoder.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    return doubled(encoder)


def doubled(encoder: DualEncoder) -> DualEncoder:
    """Let an encoder compute in double precision, where rounding hides nothing."""
    encoder.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(), *inputs[1:]))
    return encoder.double()


def gradients(encoder: DualEncoder) -> dict[str, torch.Tensor]:
    found = {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}
    encoder.zero_grad()
    return found


def seeds_of(batch: ImageTextBatch, chunk: int) -> list[int]:
    return [seed_for(0, RngStream.DROPOUT, at) for at in range(0, len(batch.crops), chunk)]


def in_chunks(encoder: DualEncoder, settings: ObjectiveConfig, batch: ImageTextBatch) -> float:
    objective = ContrastiveObjective(settings, 0, 0.5, CHUNK)
    accelerator = Accelerator(cpu=True)
    output = backward_in_chunks(
        accelerator, encoder, encoder, objective, batch, CHUNK, seeds_of(batch, CHUNK)
    )
    return output.loss.item()


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        largest = value.abs().max().clamp(min=1e-3)
        assert (value - other[name]).abs().max() <= 1e-6 * largest, name


@pytest.mark.parametrize("settings", OBJECTIVES, ids=lambda item: "-".join(map(str, item.values())))
def test_every_objective_has_the_gradients_of_the_plain_step(settings: dict[str, Any]) -> None:
    objective = ObjectiveConfig.model_validate(settings)
    encoder, batch = make_encoder(), supervised_batch()
    plain = ContrastiveObjective(objective, 0, 0.5).compute_loss(encoder, encoder, batch)
    plain.loss.backward()
    expected = gradients(encoder)
    assert in_chunks(encoder, objective, batch) == pytest.approx(plain.loss.item(), rel=1e-6)
    found = gradients(encoder)
    assert len(found) > 20
    assert_same(expected, found)


def test_both_passes_of_a_chunk_drop_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, batch = ObjectiveConfig(), supervised_batch()
    encoder = make_encoder(dropout=0.5)
    parts = []
    for seed, part in zip(seeds_of(batch, CHUNK), batch.in_chunks(CHUNK), strict=True):
        torch.manual_seed(seed)
        parts.append(ContrastiveObjective.encode(encoder, part))
    regions, sentences = (torch.cat(side) for side in zip(*parts, strict=True))
    ContrastiveObjective(objective, 0)(encoder, regions, sentences, batch).loss.backward()
    expected = gradients(encoder)
    in_chunks(encoder, objective, batch)
    assert_same(expected, gradients(encoder))
    encoder.eval()
    in_chunks(encoder, objective, batch)  # without dropout they are others
    undropped = gradients(encoder)
    assert any(not torch.allclose(undropped[name], expected[name]) for name in expected)


def test_batch_norms_that_learn_are_refused_by_name() -> None:
    def start(**settings: Any) -> TrainStep:
        loop = TrainConfig.model_validate({"chunk": 2, "steps": 9, **settings})
        objective = ContrastiveObjective(ObjectiveConfig(), 0)
        return TrainStep(Accelerator(cpu=True), tiny_dual_encoder(), objective, loop, seed=0)

    others = sum(isinstance(item, nn.BatchNorm2d) for item in tiny_dual_encoder().modules()) - 1
    named = rf"batch norms of the model \(image\..* and {others} more\).*freeze_batchnorm"
    with pytest.raises(ConfigError, match=named):
        start()
    for allowed in ({"freeze_batchnorm": True}, {"frozen": ["image"]}, {"chunk": 0}):
        start(**allowed)


def test_a_step_in_chunks_moves_the_weights_as_a_plain_one() -> None:
    moved = []
    for chunk in (0, 2):
        encoder = doubled(tiny_dual_encoder())
        loop = TrainConfig(chunk=chunk, steps=9, freeze_batchnorm=True, warmup_steps=0)
        objective = ContrastiveObjective(ObjectiveConfig(), 0, chunk=chunk)
        step = TrainStep(Accelerator(cpu=True), encoder, objective, loop, seed=0)
        assert step(supervised_batch(), stop=False).updated
        moved.append(encoder.state_dict())
        figures = validation_loss(Accelerator(cpu=True), encoder, objective, [supervised_batch()])
        moved[-1]["validation"] = torch.tensor(figures["validation_loss"])
    for name, value in moved[0].items():
        torch.testing.assert_close(value, moved[1][name], rtol=1e-6, atol=1e-9)
