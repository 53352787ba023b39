import pytest
import torch

from benchmarks.fixtures.tiny_models import random_images, random_tokens, tiny_dual_encoder
from medclip_dcl.errors import CheckpointError
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.models.image_encoder import to_input
from medclip_dcl.training.optim import (
    build_optimizer,
    load_optimizer_tensors,
    optimizer_tensors,
    set_learning_rate,
)
from medclip_dcl.training.settings import TrainConfig

SETTINGS = TrainConfig(learning_rate=1e-2, text_learning_rate=1e-3, weight_decay=0.5)


def step(model: DualEncoder, optimizer: torch.optim.Optimizer) -> None:
    scores = model.score(
        model.encode_images(to_input(random_images(3), 64)),
        model.encode_sentences(*random_tokens(3)),
    )
    (model.gamma * scores).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_biases_norms_and_gamma_do_not_decay() -> None:
    model = tiny_dual_encoder()
    names = {parameter: name for name, parameter in model.named_parameters()}
    decay = {
        names[parameter]: group["weight_decay"]
        for group in build_optimizer(model, SETTINGS).param_groups
        for parameter in group["params"]
    }
    assert decay.keys() == set(names.values())
    assert decay["gamma"] == 0
    assert all(value == 0 for name, value in decay.items() if name.endswith("bias"))
    assert all(value == 0 for name, value in decay.items() if "ormalization" in name)
    assert all(value == 0 for name, value in decay.items() if "LayerNorm" in name)
    assert decay["region_projection.weight"] == decay["text.projection.weight"] == 0.5


def test_the_text_encoder_has_its_own_learning_rate() -> None:
    model = tiny_dual_encoder()
    optimizer = build_optimizer(model, SETTINGS)
    set_learning_rate(optimizer, 0.5)
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            expected = 5e-4 if names[parameter].startswith("text.") else 5e-3
            assert group["lr"] == pytest.approx(expected)


def test_restored_state_gives_the_same_next_step() -> None:
    model, other = tiny_dual_encoder(), tiny_dual_encoder()
    optimizer, restored = build_optimizer(model, SETTINGS), build_optimizer(other, SETTINGS)
    step(model, optimizer)
    saved = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, model).items()}
    other.load_state_dict(model.state_dict())
    load_optimizer_tensors(restored, other, saved)
    step(model, optimizer)
    step(other, restored)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_state_of_another_model_is_refused() -> None:
    model = tiny_dual_encoder()
    optimizer = build_optimizer(model, SETTINGS)
    with pytest.raises(CheckpointError, match="exp_avg/nowhere"):
        load_optimizer_tensors(optimizer, model, {"exp_avg/nowhere": torch.zeros(3)})
    with pytest.raises(CheckpointError, match="exp_avg/gamma"):
        load_optimizer_tensors(optimizer, model, {"exp_avg/gamma": torch.zeros(3)})
