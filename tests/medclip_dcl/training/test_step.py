import dataclasses
import math

import pytest
import torch
from accelerate import Accelerator

from medclip_dcl.errors import ArtifactStale
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.rng import RngStream, seed_for
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.optim import optimizer_tensors, set_training_mode
from medclip_dcl.training.settings import ObjectiveConfig, TrainConfig
from medclip_dcl.training.step import DropoutOrder, TrainStep
from testing.tiny_models import pair_batch, tiny_dual_encoder

SETTINGS = TrainConfig(global_batch=6, steps=10, learning_rate=1e-2, warmup_steps=0)


def make() -> tuple[DualEncoder, torch.optim.Optimizer, TrainStep]:
    encoder = tiny_dual_encoder().train()
    objective = ContrastiveObjective(ObjectiveConfig(), 0)
    step = TrainStep(Accelerator(cpu=True), encoder, objective, SETTINGS, seed=0)
    return encoder, step.optimizer, step


def slopes() -> list[torch.Tensor]:
    """Gradients of the first step, before anything cuts them."""
    encoder, _, _ = make()
    torch.manual_seed(seed_for(0, RngStream.DROPOUT, 0, 0))
    loss = ContrastiveObjective(ObjectiveConfig(), 0).compute_loss(encoder, encoder, pair_batch(6))
    return list(torch.autograd.grad(loss.loss, list(encoder.parameters())))


def copies(encoder: DualEncoder, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    everything = {**encoder.state_dict(), **optimizer_tensors(optimizer, encoder)}
    return {name: tensor.clone() for name, tensor in everything.items()}


def test_a_step_moves_every_weight_and_leaves_no_gradient() -> None:
    encoder, optimizer, step = make()
    before = copies(encoder, optimizer)
    report = step(pair_batch(6), stop=False)
    assert report.updated
    squares = sum(gradient.square().sum().item() for gradient in slopes())
    assert report.norm == pytest.approx(math.sqrt(squares), rel=1e-5)
    assert math.isfinite(report.output.loss.item())
    moved = [
        not torch.equal(before[name], parameter) for name, parameter in encoder.named_parameters()
    ]
    assert sum(moved) > 0.9 * len(moved)  # some word pieces do not occur
    assert all(parameter.grad is None for parameter in encoder.parameters())


def test_a_step_with_a_loss_that_is_no_number_changes_nothing() -> None:
    encoder, optimizer, step = make()
    step(pair_batch(6), stop=False)
    before = copies(encoder, optimizer)
    broken = dataclasses.replace(pair_batch(6, step=1), brightness=torch.full((6,), math.nan))
    report = step(broken, stop=False)
    assert not report.updated
    after = copies(encoder, optimizer)
    assert before.keys() == after.keys()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    assert step(pair_batch(6, step=2), stop=False).updated


def test_gamma_stays_within_its_range() -> None:
    encoder, _, step = make()
    with torch.no_grad():
        encoder.gamma.fill_(10.0)
    step(pair_batch(6), stop=False)
    assert 1 <= encoder.gamma.item() ** 2 <= 100 + 1e-4


@pytest.mark.parametrize(("chunk", "unit"), [(0, 3), (1, 1), (8, 3)])
def test_one_process_drops_what_each_of_two_would_have_dropped(chunk: int, unit: int) -> None:
    batch = pair_batch(6)
    batch.attention_mask[:3, -1] = 0  # the first process's sentences are shorter
    encoder = tiny_dual_encoder().train()
    encoder.text.backbone.embeddings.dropout.p = 0.5
    settings = SETTINGS.model_copy(update={"chunk": chunk, "freeze_batchnorm": True})
    objective = ContrastiveObjective(ObjectiveConfig(), 0)
    step = TrainStep(Accelerator(cpu=True), encoder, objective, settings, seed=0)
    step.replay_dropout(2)
    set_training_mode(encoder, freeze_batchnorm=True)
    parts = []
    for number, part in enumerate(batch.in_chunks(unit)):
        process, within = divmod(number * unit, 3)
        place = (process, within) if chunk == 1 else (process,)
        torch.manual_seed(seed_for(0, RngStream.DROPOUT, 0, *place))
        parts.append(objective.encode(encoder, part))
    vectors = (torch.cat(side) for side in zip(*parts, strict=True))
    expected = objective(encoder, *vectors, batch).loss.item()
    assert step(batch, stop=False).output.loss.item() == pytest.approx(expected, rel=1e-6)


def test_processes_that_cannot_drop_the_same_are_refused() -> None:
    encoder, _, step = make()
    encoder.text.backbone.embeddings.dropout.p = 0.5
    step.replay_dropout(2)
    order = DropoutOrder(pairs=8, chunk=0)
    assert [local for local in range(1, 25) if order.fits(local)] == [8, 16, 24]
    assert [local for local in (1, 2, 4, 6) if DropoutOrder(8, 2).fits(local)] == [2, 4, 6]
    # An image encoder with dropout and batch norms that learn sees its images together.
    encoder.image.dropout = torch.nn.Dropout(0.1)
    step.replay_dropout(1)
    with pytest.raises(ArtifactStale, match=r"dropout \(image.dropout and 1 more\).*for 3 pairs"):
        step.replay_dropout(2)


def test_dropout_is_a_function_of_the_step() -> None:
    losses = []
    for noise in (1, 2):
        encoder, _, step = make()
        encoder.text.backbone.embeddings.dropout.p = 0.5
        torch.manual_seed(noise)
        losses.append(step(pair_batch(6), stop=False).output.loss.item())
    assert losses[0] == losses[1]
