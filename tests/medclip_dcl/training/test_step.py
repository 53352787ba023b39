import dataclasses
import math

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.training import optim
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.settings import ObjectiveConfig, TrainConfig
from medclip_dcl.training.step import TrainStep
from tests.support.tiny_models import pair_batch, tiny_dual_encoder

TREE = {"global_batch": 6, "steps": 10, "learning_rate": 1e-2, "warmup_steps": 0}


def make(dropout: float = 0.0, **settings: object) -> tuple[DualEncoder, TrainStep]:
    loop = TrainConfig.model_validate({**TREE, **settings})
    encoder = tiny_dual_encoder().train()
    encoder.text.backbone.embeddings.dropout.p = dropout
    accelerator = Accelerator(cpu=True, mixed_precision=loop.precision)
    objective = ContrastiveObjective(ObjectiveConfig(), 0)
    return encoder, TrainStep(accelerator, encoder, objective, loop, seed=0)


def losses(step: TrainStep, steps: int = 3) -> list[float]:
    outputs = [step(pair_batch(6, step=number), stop=False).output for number in range(steps)]
    assert {output.loss.dtype for output in outputs} == {torch.float32}
    return [output.loss.item() for output in outputs]


def slopes() -> list[torch.Tensor]:
    """Gradients of the first step, before anything cuts them."""
    encoder, _ = make()
    loss = ContrastiveObjective(ObjectiveConfig(), 0).compute_loss(encoder, encoder, pair_batch(6))
    return list(torch.autograd.grad(loss.loss, list(encoder.parameters())))


def copies(encoder: DualEncoder, step: TrainStep) -> dict[str, torch.Tensor]:
    everything = {**encoder.state_dict(), **optim.optimizer_tensors(step.optimizer, encoder)}
    return {name: tensor.clone() for name, tensor in everything.items()}


def test_a_step_moves_every_weight_leaves_no_gradient_and_keeps_gamma_in_its_range():
    encoder, step = make()
    before = copies(encoder, step)
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
    with torch.no_grad():
        encoder.gamma.fill_(10.0)
    step(pair_batch(6), stop=False)
    assert 1 <= encoder.gamma.item() ** 2 <= 100 + 1e-4


def test_a_step_with_a_loss_that_is_no_number_changes_nothing() -> None:
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
    found = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        found.append(losses(make(dropout=0.5)[1]))
    assert found[0] == found[1] != losses(make()[1])


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


def test_each_part_has_its_own_learning_rate() -> None:
    settings = TrainConfig(learning_rate=1e-4, text_learning_rate=4e-4)
    rates = {
        name: optim.peak_learning_rate(name, settings)
        for name in ("image.backbone.x", "text.backbone.x", "text.projection.bias", "gamma")
    }
    assert list(rates.values()) == [1e-4, 4e-4, 4e-4, 1e-4]
    alone = TrainConfig(learning_rate=4e-4, text_learning_rate=2e-4)
    assert optim.peak_learning_rate("text.projection.bias", alone) == 2e-4
    assert optim.peak_learning_rate("region_projection.bias", alone) == 4e-4


def test_frozen_parts_and_frozen_batch_norms_of_one_or_many_gpus_are_in_eval_mode():
    encoder = tiny_dual_encoder()
    norms = [item for item in encoder.modules() if isinstance(item, torch.nn.BatchNorm2d)]
    optim.set_training_mode(encoder, freeze_batchnorm=True)
    assert norms
    assert not any(norm.training for norm in norms)
    assert encoder.text.backbone.training
    optim.set_training_mode(
        encoder, freeze_batchnorm=False, frozen=frozenset({optim.ParamGroup.TEXT})
    )
    assert all(norm.training for norm in norms)
    assert not encoder.text.backbone.embeddings.dropout.training
    assert encoder.text.projection.training
    encoder = tiny_dual_encoder()
    keys = encoder.state_dict().keys()
    encoder.image = torch.nn.SyncBatchNorm.convert_sync_batchnorm(encoder.image)
    norms = [item for item in encoder.modules() if isinstance(item, torch.nn.SyncBatchNorm)]
    assert norms
    assert not [item for item in encoder.modules() if isinstance(item, torch.nn.BatchNorm2d)]
    assert encoder.state_dict().keys() == keys
    optim.set_training_mode(encoder, freeze_batchnorm=True)
    assert not any(norm.training for norm in norms)


def test_bf16_follows_float32_and_its_loss_is_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = losses(make(learning_rate=1e-4)[1])
    monkeypatch.setattr(AcceleratorState, "_shared_state", {})  # one precision a process, else
    half = losses(make(learning_rate=1e-4, precision="bf16")[1])
    assert half != plain
    assert half == pytest.approx(plain, rel=0.02)
