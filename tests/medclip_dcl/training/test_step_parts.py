import itertools
import math

import torch
from accelerate import Accelerator

from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.optim import (
    ParamGroup,
    load_optimizer_tensors,
    optimizer_tensors,
    param_group_of,
    peak_learning_rate,
    set_training_mode,
)
from medclip_dcl.training.settings import ObjectiveConfig, TrainConfig
from medclip_dcl.training.step import TrainStep
from testing.tiny_models import pair_batch, tiny_dual_encoder

SLOW = TrainConfig(
    global_batch=6,
    steps=10,
    learning_rate=1e-2,
    warmup_steps=0,
    image_frozen_steps=4,
    text_frozen_steps=2,
)


def run(settings: TrainConfig, encoder: DualEncoder, steps: range, state=None) -> dict:
    """Do some steps; give the optimiser's state."""
    objective = ContrastiveObjective(ObjectiveConfig(), 0)
    step = TrainStep(Accelerator(cpu=True), encoder, objective, settings, seed=0)
    if state is not None:
        load_optimizer_tensors(step.optimizer, encoder, state)
    for number in steps:
        assert step(pair_batch(6, step=number), stop=False).updated
    return {
        name: value.clone() for name, value in optimizer_tensors(step.optimizer, encoder).items()
    }


def weights(encoder: DualEncoder) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in encoder.state_dict().items()}


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[ParamGroup]:
    return {param_group_of(name) for name in before if not torch.equal(before[name], after[name])}


def test_every_weight_belongs_to_a_part() -> None:
    dual = tiny_dual_encoder()
    parts = {name: param_group_of(name) for name, _ in dual.named_parameters()}
    assert parts["gamma"] is ParamGroup.SCALE
    assert (
        parts["region_projection.bias"] is parts["text.projection.weight"] is ParamGroup.PROJECTION
    )
    assert set(parts.values()) == set(ParamGroup)


def test_frozen_parts_do_not_move_and_thawed_ones_do() -> None:
    encoder = tiny_dual_encoder().train()
    states = [weights(encoder)]
    state = None
    for steps in (range(2), range(2, 4), range(4, 5)):
        state = run(SLOW, encoder, steps, state)
        states.append(weights(encoder))
    turns = [moved(*pair) for pair in itertools.pairwise(states)]
    assert turns[0] == {
        ParamGroup.PROJECTION,
        ParamGroup.SCALE,
    }  # norms' statistics did not move either
    assert turns[1] == {ParamGroup.PROJECTION, ParamGroup.SCALE, ParamGroup.TEXT}
    assert turns[2] == set(ParamGroup)


def test_a_run_resumed_across_a_thaw_has_the_same_weights() -> None:
    whole, parts = tiny_dual_encoder().train(), tiny_dual_encoder().train()
    run(SLOW, whole, range(6))
    state = None
    for steps in (range(1), range(1, 3), range(3, 6)):
        state = run(SLOW, parts, steps, state)
    expected = whole.state_dict()
    found = parts.state_dict()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []


def test_a_part_that_is_always_frozen_has_no_optimiser_state() -> None:
    settings = SLOW.model_copy(update={"image_frozen_steps": 10, "text_frozen_steps": 0})
    state = run(settings, tiny_dual_encoder().train(), range(3))
    names = {label.partition("/")[2] for label in state}
    assert {param_group_of(name) for name in names} == set(ParamGroup) - {ParamGroup.IMAGE}


def test_each_part_has_its_own_learning_rate() -> None:
    settings = TrainConfig(learning_rate=4e-4, image_learning_rate=1e-4)
    rates = {
        name: peak_learning_rate(name, settings)
        for name in ("image.backbone.x", "text.backbone.x", "text.projection.bias", "gamma")
    }
    assert list(rates.values()) == [1e-4, 4e-4, 4e-4, 4e-4]
    alone = TrainConfig(learning_rate=4e-4, text_learning_rate=2e-4)
    assert peak_learning_rate("text.projection.bias", alone) == 2e-4
    assert peak_learning_rate("region_projection.bias", alone) == 4e-4


def test_a_learning_rate_of_zero_point_one_moves_its_part_further() -> None:
    encoder = tiny_dual_encoder().train()
    before = weights(encoder)
    settings = TrainConfig(
        global_batch=6,
        steps=10,
        learning_rate=1e-3,
        image_learning_rate=1e-1,
        warmup_steps=0,
        weight_decay=0,
    )
    run(settings, encoder, range(1))
    # The first step of Adam moves a weight by its learning rate, whatever the gradient.
    for name, rate in (("region_projection.weight", 1e-1), ("gamma", 1e-3)):
        far = (encoder.state_dict()[name] - before[name]).abs().max().item()
        assert math.isclose(far, rate, rel_tol=1e-2), name


def test_frozen_parts_and_frozen_batch_norms_are_in_eval_mode() -> None:
    encoder = tiny_dual_encoder()
    norms = [item for item in encoder.modules() if isinstance(item, torch.nn.BatchNorm2d)]
    set_training_mode(encoder, freeze_batchnorm=True)
    assert norms
    assert not any(norm.training for norm in norms)
    assert encoder.text.backbone.training
    set_training_mode(encoder, freeze_batchnorm=False, frozen=frozenset({ParamGroup.TEXT}))
    assert all(norm.training for norm in norms)
    assert not encoder.text.backbone.embeddings.dropout.training
    assert encoder.text.projection.training


def test_norms_that_many_gpus_share_keep_their_keys_and_can_be_frozen() -> None:
    encoder = tiny_dual_encoder()
    keys = encoder.state_dict().keys()
    encoder.image = torch.nn.SyncBatchNorm.convert_sync_batchnorm(encoder.image)
    norms = [item for item in encoder.modules() if isinstance(item, torch.nn.SyncBatchNorm)]
    assert norms
    assert not [item for item in encoder.modules() if isinstance(item, torch.nn.BatchNorm2d)]
    assert encoder.state_dict().keys() == keys
    set_training_mode(encoder, freeze_batchnorm=True)
    assert not any(norm.training for norm in norms)
