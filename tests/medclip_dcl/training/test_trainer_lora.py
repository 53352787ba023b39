"""Low-rank adapters in the training loop."""

import math
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from medclip_dcl.errors import ConfigError
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.models.lora import add_adapters, merged
from medclip_dcl.training.checkpoint import CheckpointStore
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.optim import build_optimizer, freeze, peak_learning_rate
from medclip_dcl.training.settings import ObjectiveConfig, TrainConfig
from medclip_dcl.training.step import TrainStep
from medclip_dcl.training.trainer import Trainer
from testing.tiny_models import pair_batch, random_tokens, tiny_dual_encoder

TEXT = {"text": 2}
LOOP = TrainConfig(
    global_batch=6, steps=4, learning_rate=1e-2, text_learning_rate=3e-2, warmup_steps=0
)


def adapted_encoder() -> DualEncoder:
    encoder = tiny_dual_encoder()
    assert add_adapters(encoder, TEXT, seed=0) == 6  # query, key, value, three dense layers
    return encoder


def trainer(folder: Path) -> Trainer:
    store = CheckpointStore(folder, {"fingerprint": 1}, LOOP.steps)
    folder.mkdir(exist_ok=True)
    objective = ContrastiveObjective(ObjectiveConfig(), 0)
    return Trainer(Accelerator(cpu=True), adapted_encoder(), objective, store, LOOP, seed=0)


def do_steps(loop: Trainer, steps: range) -> None:
    for number in steps:
        batch = pair_batch(6, step=number)
        loop._count(batch, loop._step(batch, stop=False))


def test_the_encoders_own_weights_stay_and_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole")
    before = {key: value.clone() for key, value in whole._encoder.state_dict().items()}
    do_steps(whole, range(4))
    after = whole.published()[1]
    moved = {key for key in before if not torch.equal(before[key], after[key])}
    text = {key for key in moved if key.startswith("text.backbone")}
    assert text == {key for key in before if ".lora_" in key}
    assert any(key.startswith("image.") for key in moved)

    begun = trainer(tmp_path / "stopped")
    do_steps(begun, range(2))
    begun._save()
    resumed = trainer(tmp_path / "stopped")
    assert resumed.state.step == 2
    do_steps(resumed, range(2, 4))
    again = resumed.published()[1]
    assert all(torch.equal(after[key], again[key]) for key in after)


@torch.no_grad()
def test_merged_weights_answer_as_the_adapters_do_without_peft() -> None:
    encoder = adapted_encoder().eval()
    torch.manual_seed(1)
    for name, parameter in encoder.named_parameters():
        if "lora_B" in name:
            parameter.normal_()
    plain = tiny_dual_encoder().eval()
    ids, mask = random_tokens(3)
    start = plain.encode_sentences(ids, mask)
    plain.load_state_dict(merged(encoder.state_dict()))
    expected = encoder.encode_sentences(ids, mask)
    assert float((expected - start).abs().max()) > 0.1
    torch.testing.assert_close(plain.encode_sentences(ids, mask), expected, atol=1e-5, rtol=0)


def test_adapters_start_at_the_encoders_own_answers_and_learn_at_its_rate() -> None:
    encoder = adapted_encoder()
    ids, mask = random_tokens(3)
    with torch.no_grad():
        answers = encoder.eval().encode_sentences(ids, mask)
        assert torch.equal(answers, tiny_dual_encoder().eval().encode_sentences(ids, mask))
    freeze(encoder, frozenset())
    learning = {name for name, item in encoder.named_parameters() if item.requires_grad}
    adapters = {name for name in learning if ".lora_" in name}
    assert len(adapters) == 12
    assert {name for name in learning if name.startswith("text.backbone")} == adapters
    optimised = sum(len(group["params"]) for group in build_optimizer(encoder, LOOP).param_groups)
    assert optimised == len(learning)
    assert all(math.isclose(peak_learning_rate(name, LOOP), 3e-2) for name in adapters)


def test_layers_that_are_not_there_are_named() -> None:
    encoder = tiny_dual_encoder()
    with pytest.raises(ConfigError, match="image encoder has no linear layer"):
        add_adapters(encoder, {"image": 2, "text": 2}, seed=0)


def test_gradient_checkpointing_reaches_the_adapters() -> None:
    gradients = []
    for checkpointing in ("none", "text"):
        encoder = adapted_encoder()
        settings = LOOP.model_copy(update={"gradient_checkpointing": checkpointing})
        step = TrainStep(
            Accelerator(cpu=True), encoder, ContrastiveObjective(ObjectiveConfig(), 0), settings, 0
        )
        step(pair_batch(6), stop=False)
        gradients.append({key: item.clone() for key, item in encoder.state_dict().items()})
    for key, value in gradients[0].items():
        torch.testing.assert_close(gradients[1][key], value, atol=1e-6, rtol=1e-5)
