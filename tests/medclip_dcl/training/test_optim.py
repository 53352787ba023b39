import copy

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.models.image_encoder import ImageEncoder, to_input
from medclip_dcl.models.settings import ImageEncoderConfig
from medclip_dcl.training import optim
from medclip_dcl.training.settings import TrainConfig
from tests.support.tiny_models import random_images, random_tokens, tiny_dual_encoder

SETTINGS = TrainConfig(learning_rate=1e-2, text_learning_rate=1e-3, weight_decay=0.5)


def step(model: DualEncoder, optimizer: torch.optim.Optimizer) -> None:
    scores = model.score(
        model.encode_images(to_input(random_images(3), 64)),
        model.encode_sentences(*random_tokens(3)),
    )
    (model.gamma * scores).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def decay_of(model: nn.Module) -> dict[str, float]:
    """Weight decay of each parameter that learns, by its name."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = optim.build_optimizer(model, SETTINGS).param_groups
    return {names[one]: group["weight_decay"] for group in groups for one in group["params"]}


def test_biases_norms_and_gamma_do_not_decay() -> None:
    model = tiny_dual_encoder()
    decay = decay_of(model)
    assert decay.keys() == dict(model.named_parameters()).keys()
    assert decay["gamma"] == 0
    for part in ("bias", "ormalization", "LayerNorm"):
        assert {value for name, value in decay.items() if part in name} == {0}
    assert decay["region_projection.weight"] == decay["text.projection.weight"] == 0.5


@pytest.mark.parametrize("kind", ["dinov2_with_registers", "siglip_vision_model"])
def test_what_a_vision_transformer_adds_to_its_patches_does_not_decay(kind: str) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    wide = {"mlp_ratio": 2} if kind.startswith("dinov2") else {"intermediate_size": 16}
    backbone = {"model_type": kind, "patch_size": 8, **wide, **sizes}
    settings = ImageEncoderConfig(kind="vit", backbone=backbone, input_px=32)
    model = nn.ModuleDict({"image": ImageEncoder(settings)})
    decay = decay_of(model)
    weights = {name for name, one in model.named_parameters() if one.ndim > 1}
    added = {name for name in weights if "token" in name or "position" in name}
    assert {name for name in weights if not decay[name]} == added != set()


def test_restored_state_gives_the_same_next_step_and_of_another_model_is_refused():
    model, other = tiny_dual_encoder(), tiny_dual_encoder()
    optimizer, restored = (optim.build_optimizer(each, SETTINGS) for each in (model, other))
    step(model, optimizer)
    saved = copy.deepcopy(optim.optimizer_tensors(optimizer, model))
    other.load_state_dict(model.state_dict())
    optim.load_optimizer_tensors(restored, other, saved)
    step(model, optimizer)
    step(other, restored)
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    for name in ("exp_avg/nowhere", "exp_avg/gamma"):
        with pytest.raises(CheckpointError, match=name):
            optim.load_optimizer_tensors(optimizer, model, {name: torch.zeros(3)})


def test_warm_up_is_linear_to_the_peak_and_the_cosine_half_in_its_middle():
    shares = [optim.learning_rate_share(step, 4, 104) for step in range(4)]
    assert shares == [0.25, 0.5, 0.75, 1.0]
    assert optim.learning_rate_share(4, 4, 104) == 1.0
    assert optim.learning_rate_share(54, 4, 104) == pytest.approx(0.5)
    assert 0 < optim.learning_rate_share(103, 4, 104) < 0.001


@pytest.mark.parametrize("of_text", [4e-4, 2e-5])
def test_each_part_has_its_own_learning_rate(of_text: float) -> None:
    settings = TrainConfig(learning_rate=1e-4, text_learning_rate=of_text)
    for name in ("image.backbone.x", "region_projection.bias", "gamma"):
        assert optim.peak_learning_rate(name, settings) == 1e-4
    for name in ("text.backbone.x", "text.projection.bias"):
        assert optim.peak_learning_rate(name, settings) == of_text


def test_frozen_parts_and_frozen_batch_norms_of_one_or_many_gpus_are_in_eval_mode():
    one, many = tiny_dual_encoder(), tiny_dual_encoder()
    many.image = nn.SyncBatchNorm.convert_sync_batchnorm(many.image)
    assert many.state_dict().keys() == one.state_dict().keys()
    for encoder, kind in ((one, nn.BatchNorm2d), (many, nn.SyncBatchNorm)):
        norms = [module for module in encoder.modules() if isinstance(module, _BatchNorm)]
        assert {type(norm) for norm in norms} == {kind}
        optim.set_training_mode(encoder, freeze_batchnorm=True)
        assert not any(norm.training for norm in norms)
        assert encoder.text.backbone.training
        frozen = frozenset({optim.ParamGroup.TEXT})
        optim.set_training_mode(encoder, freeze_batchnorm=False, frozen=frozen)
        assert all(norm.training for norm in norms)
        assert not encoder.text.backbone.embeddings.dropout.training
        assert encoder.text.projection.training


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({}, 100_000),
        ({"steps": 7}, 7),
        ({"epochs": 3}, 30),
        ({"epochs": 0.25}, 2),
        ({"epochs": 0.01}, 1),
        ({"epochs": 3, "steps": None}, 30),
    ],
)
def test_epochs_are_passes_of_full_batches(given: dict[str, float], steps: int) -> None:
    settings = TrainConfig.model_validate(given).counted(steps_per_epoch=10)
    assert (settings.total_steps, settings.epochs) == (steps, None)
    assert TrainConfig.model_validate(settings.model_dump()) == settings
