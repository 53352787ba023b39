"""One optimiser step; of a batch that is encoded chunk by chunk, the step of the whole batch."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.rng import RngStream, seed_for
from medclip_dcl.losses.relations import encode_claims
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.training import optim
from medclip_dcl.training.dataset import ImageTextBatch
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.settings import ObjectiveConfig, TrainConfig
from medclip_dcl.training.step import TrainStep, backward_in_chunks
from medclip_dcl.training.validation import validation_loss
from tests.medclip_dcl.losses.test_relations import claims
from tests.support.tiny_models import pair_batch, tiny_dual_encoder

TREE = {"global_batch": 6, "steps": 10, "learning_rate": 1e-2, "warmup_steps": 0}


def make_step(encoder: DualEncoder, **settings: object) -> TrainStep:
    loop = TrainConfig.model_validate({**TREE, **settings})
    accelerator = Accelerator(cpu=True, mixed_precision=loop.precision)
    objective = ContrastiveObjective(ObjectiveConfig(), 0, chunk=loop.chunk)
    return TrainStep(accelerator, encoder, objective, loop, seed=0)


def make(dropout: float = 0.0, **settings: object) -> tuple[DualEncoder, TrainStep]:
    encoder = tiny_dual_encoder().train()
    encoder.text.backbone.embeddings.dropout.p = dropout
    return encoder, make_step(encoder, **settings)


def losses(step: TrainStep) -> list[float]:
    outputs = [step(pair_batch(6, step=number), stop=False).output for number in range(3)]
    assert {output.loss.dtype for output in outputs} == {torch.float32}
    return [output.loss.item() for output in outputs]


def copies(encoder: DualEncoder, step: TrainStep) -> dict[str, torch.Tensor]:
    everything = {**encoder.state_dict(), **optim.optimizer_tensors(step.optimizer, encoder)}
    return {name: tensor.clone() for name, tensor in everything.items()}


def test_a_step_moves_every_weight_leaves_no_gradient_and_keeps_gamma_in_its_range():
    encoder, step = make()
    before = copies(encoder, step)
    report = step(pair_batch(6), stop=False)
    assert report.updated
    other, _ = make()
    plain = ContrastiveObjective(ObjectiveConfig(), 0).compute_loss(other, other, pair_batch(6))
    slopes = torch.autograd.grad(plain.loss, list(other.parameters()))  # before they are cut
    squares = sum(slope.square().sum().item() for slope in slopes)
    assert report.norm == pytest.approx(math.sqrt(squares), rel=1e-5)
    assert math.isfinite(report.output.loss.item())
    weights = dict(encoder.named_parameters())
    moved = [name for name in weights if not torch.equal(before[name], weights[name])]
    assert len(moved) > 0.9 * len(weights)  # some word pieces do not occur
    assert all(parameter.grad is None for parameter in encoder.parameters())
    with torch.no_grad():
        encoder.gamma.fill_(10.0)
    step(pair_batch(6), stop=False)
    assert 1 <= encoder.gamma.item() ** 2 <= 100 + 1e-4


def test_a_step_with_a_loss_that_is_not_a_number_changes_nothing() -> None:
    encoder, step = make()
    step(pair_batch(6), stop=False)
    before = copies(encoder, step)
    broken = dataclasses.replace(pair_batch(6, step=1), brightness=torch.full((6,), math.nan))
    report = step(broken, stop=False)
    assert not report.updated
    after = copies(encoder, step)
    assert before.keys() == after.keys()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    assert step(pair_batch(6, step=2), stop=False).updated


def test_dropout_is_a_function_of_the_step() -> None:
    first = losses(make(dropout=0.5)[1])
    torch.manual_seed(1)  # whatever was drawn before
    assert first == losses(make(dropout=0.5)[1]) != losses(make()[1])


@pytest.mark.parametrize(
    "frozen", [(), ("image",), ("text",), ("image", "text")], ids=lambda names: "-".join(names)
)
def test_frozen_parts_do_not_move_and_have_no_optimiser_state(frozen: tuple[str, ...]) -> None:
    encoder, step = make(frozen=frozen)
    before = copies(encoder, step)
    losses(step)
    after = copies(encoder, step)
    learning = set(optim.ParamGroup) - set(map(optim.ParamGroup, frozen))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert {optim.param_group_of(name) for name in moved} == learning  # nor did norms' statistics
    states = after.keys() - before.keys()
    assert {optim.param_group_of(label.partition("/")[2]) for label in states} == learning


def test_bf16_follows_float32_and_its_loss_is_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = losses(make(learning_rate=1e-4)[1])
    monkeypatch.setattr(AcceleratorState, "_shared_state", {})  # one precision a process, else
    half = losses(make(learning_rate=1e-4, precision="bf16")[1])
    assert half != plain
    assert half == pytest.approx(plain, rel=0.02)


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


def supervised_batch() -> ImageTextBatch:
    """Pairs with claims of three kinds, labels and vectors."""
    kinds = ("Edema|left", "Pneumonia|right", "Edema|right")
    codes = encode_claims([claims(kinds[number % 3]) for number in range(PAIRS)])
    vectors = nn.functional.normalize(torch.randn(PAIRS, 5, generator=torch.manual_seed(0)), dim=1)
    columns = {
        "sentence_codes": codes,
        "report_codes": codes,
        "labels": torch.arange(5) == torch.arange(PAIRS)[:, None] % 5,
        "text_vectors": vectors,
    }
    return dataclasses.replace(pair_batch(PAIRS), columns=columns)


def exact_encoder(dropout: float = 0.0) -> DualEncoder:
    """An encoder that computes in double precision, where rounding hides nothing."""
    encoder = tiny_dual_encoder()
    optim.set_training_mode(encoder, freeze_batchnorm=True)
    for module in encoder.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    encoder.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(), *inputs[1:]))
    return encoder.double()


def gradients(encoder: DualEncoder) -> dict[str, torch.Tensor]:
    slopes = {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}
    encoder.zero_grad()
    return slopes


def seeds_of(batch: ImageTextBatch) -> list[int]:
    return [seed_for(0, RngStream.DROPOUT, at) for at in range(0, len(batch.crops), CHUNK)]


def in_chunks(encoder: DualEncoder, settings: ObjectiveConfig, batch: ImageTextBatch) -> float:
    objective = ContrastiveObjective(settings, 0, 0.5, CHUNK)
    return backward_in_chunks(
        Accelerator(cpu=True), encoder, encoder, objective, batch, CHUNK, seeds_of(batch)
    ).loss.item()


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        largest = value.abs().max().clamp(min=1e-3)
        assert (value - other[name]).abs().max() <= 1e-6 * largest, name


@pytest.mark.parametrize("settings", OBJECTIVES, ids=lambda item: "-".join(map(str, item.values())))
def test_every_objective_has_the_gradients_of_the_plain_step(settings: dict[str, Any]) -> None:
    objective = ObjectiveConfig.model_validate(settings)
    encoder, batch = exact_encoder(), supervised_batch()
    plain = ContrastiveObjective(objective, 0, 0.5).compute_loss(encoder, encoder, batch)
    plain.loss.backward()
    expected = gradients(encoder)
    assert len(expected) > 20
    assert in_chunks(encoder, objective, batch) == pytest.approx(plain.loss.item(), rel=1e-6)
    assert_same(expected, gradients(encoder))


def test_both_passes_of_a_chunk_drop_the_same() -> None:
    objective, batch = ObjectiveConfig(), supervised_batch()
    encoder = exact_encoder(dropout=0.5)
    parts = []
    for seed, part in zip(seeds_of(batch), batch.in_chunks(CHUNK), strict=True):
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
    others = sum(isinstance(item, nn.BatchNorm2d) for item in tiny_dual_encoder().modules()) - 1
    named = rf"batch norms of the model \(image\..* and {others} more\).*freeze_batchnorm"
    with pytest.raises(ConfigError, match=named):
        make(chunk=2)
    for allowed in ({"freeze_batchnorm": True}, {"frozen": ["image"]}, {"chunk": 0}):
        make(**{"chunk": 2, **allowed})


def test_a_step_in_chunks_moves_the_weights_as_a_plain_one() -> None:
    moved = []
    for chunk in (0, 2):
        encoder = exact_encoder()
        step = make_step(encoder, chunk=chunk, freeze_batchnorm=True)
        assert step(supervised_batch(), stop=False).updated
        moved.append(encoder.state_dict())
        objective = ContrastiveObjective(ObjectiveConfig(), 0, chunk=chunk)
        figures = validation_loss(Accelerator(cpu=True), encoder, objective, [supervised_batch()])
        moved[-1]["validation"] = torch.tensor(figures["validation_loss"])
    torch.testing.assert_close(*moved, rtol=1e-6, atol=1e-9)
