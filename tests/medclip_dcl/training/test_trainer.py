"""The loop over a tiny model: bad samples, the best step, and what a resumed run finds."""

import dataclasses
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from medclip_dcl.core.errors import ConfigError, TrainingError
from medclip_dcl.models.dual_encoder import DualEncoder, add_adapters, merged
from medclip_dcl.training.checkpoint import CheckpointStore
from medclip_dcl.training.dataset import ImageTextBatch
from medclip_dcl.training.logging import MetricsLog, TrainLogger, read_metrics
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.optim import peak_learning_rate
from medclip_dcl.training.settings import ObjectiveConfig, TrainConfig
from medclip_dcl.training.step import CLIP_NORM
from medclip_dcl.training.trainer import Trainer
from medclip_dcl.training.validation import Validation
from tests.support.tiny_models import pair_batch, random_tokens, tiny_dual_encoder

TREE = {
    "global_batch": 6,
    "steps": 30,
    "learning_rate": 1e-3,
    "warmup_steps": 0,
    "save_every_steps": 10,
}


good_batch = partial(pair_batch, 6)


def lit_batch(step: int, value: float = math.nan) -> ImageTextBatch:
    """The pairs of step 0 at one brightness; not a number: their loss is not one either."""
    return dataclasses.replace(good_batch(0), step=step, brightness=torch.full((6,), value))


def batch_with_a_bad_sample(step: int) -> ImageTextBatch:
    """Every fifth step meets the one image whose pixels become infinite."""
    batch = good_batch(step)
    batch.brightness[3] = math.inf if step % 5 == 2 else 1.0
    return batch


def run(folder: Path, batch=good_batch, validation=(), lora=None, **settings: object) -> Trainer:
    """Train to the end, or raise."""
    loop_settings = TrainConfig.model_validate({**TREE, **settings})
    encoder = tiny_dual_encoder().train()
    if lora:
        add_adapters(encoder, lora, seed=0)
    objective = ContrastiveObjective(ObjectiveConfig(), 0)
    accelerator = Accelerator(cpu=True, mixed_precision=loop_settings.precision)
    store = CheckpointStore(folder, {"fingerprint": 1}, loop_settings.steps)
    folder.mkdir(exist_ok=True)
    loop = Trainer(accelerator, encoder, objective, store, loop_settings, seed=0)
    with MetricsLog(folder, loop.state.step) as log:
        logger = TrainLogger(
            accelerator, encoder, loop.optimizer, loop_settings, log, 0, lambda **_: None
        )
        assert loop.run(batch, logger, Validation(validation) if validation else None)
    return loop


def test_one_bad_sample_never_stops_a_run(tmp_path: Path) -> None:
    loop = run(tmp_path, batch_with_a_bad_sample, steps=15)
    assert (loop.state.step, loop.state.skipped, loop.state.in_a_row) == (15, 3, 0)
    _, weights = loop.published()
    assert all(torch.isfinite(value).all() for value in weights.values())
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, 16))
    assert [line["step"] for line in lines if line["loss"] is None] == [3, 8, 13]


def test_bad_samples_alone_stop_a_run_with_their_ids(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"10 steps in a row up to step 10 .* s0, s1"):
        run(tmp_path, lit_batch, save_every_steps=30)
    assert not list(tmp_path.glob("step-*"))


BEST = {
    "validation": [pair_batch(6, step=100)],
    "validate_every_steps": 3,
    "best_metric": "validation_loss",
    "learning_rate": 3e-2,
    "steps": 12,
}


@pytest.mark.parametrize("metric", ["validation_loss", ""])
def test_the_named_metric_chooses_the_published_step(tmp_path: Path, metric: str) -> None:
    loop = run(tmp_path, **{**BEST, "best_metric": metric, "save_every_steps": 30})
    step, weights = loop.published()
    losses = {
        line["step"]: line["validation_loss"]
        for line in read_metrics(tmp_path)
        if "validation_loss" in line
    }
    assert list(losses) == [3, 6, 9, 12]
    best = min(losses, key=losses.__getitem__) if metric else 12
    assert step == best
    folders = {path.name for path in tmp_path.glob("step-*")}
    assert folders == {f"step-{kept:08d}" for kept in ({best, 9, 12} if metric else {12})}
    saved = CheckpointStore(tmp_path, {"fingerprint": 1}, 12).weights(best)
    assert all(torch.equal(saved[name], value) for name, value in weights.items())


HALF = {"precision": "bf16", "steps": 9, "save_every_steps": 3}
TEXT = {"text": 2}
ADAPTED = {"lora": TEXT, "steps": 4, "save_every_steps": 2}


@pytest.mark.parametrize(("settings", "killed_at"), [(BEST, 8), (HALF, 7), (ADAPTED, 3)])
def test_a_run_that_was_cut_ends_with_the_same_bits(tmp_path, monkeypatch, settings, killed_at):
    def cut(step: int) -> ImageTextBatch:
        if step == killed_at:
            raise KeyboardInterrupt
        return good_batch(step)

    monkeypatch.setattr(AcceleratorState, "_shared_state", {})  # one precision a process, else
    step, expected = run(tmp_path / "whole", **settings).published()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", cut, **settings)
    published, weights = run(tmp_path / "cut", **settings).published()
    assert published == step
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    whole, resumed = (
        [{**line, "images_per_s": None} for line in read_metrics(tmp_path / name)]
        for name in ("whole", "cut")
    )
    assert resumed == whole
    monkeypatch.setattr(AcceleratorState, "_shared_state", {})


def test_the_log_has_the_norm_of_each_gradient_and_the_share_that_was_clipped(tmp_path):
    """One batch is learned until its gradient is short; every fifth step has none: not clipped."""

    def same_batch(step: int) -> ImageTextBatch:
        return lit_batch(step, math.inf if step % 5 == 2 else 1.0)

    run(tmp_path, same_batch, learning_rate=1e-2)
    clipped = 0
    for line in read_metrics(tmp_path):
        norm = line["gradient_norm"]
        assert (norm is None) == (line["step"] % 5 == 3)
        clipped += norm is not None and norm > CLIP_NORM
        assert line["clipped"] == pytest.approx(clipped / line["step"])
    assert 0 < clipped < 24


def adapted_encoder() -> DualEncoder:
    encoder = tiny_dual_encoder()
    assert add_adapters(encoder, TEXT, seed=0) == 6  # query, key, value, three dense layers
    return encoder


def test_of_an_encoder_with_adapters_its_own_weights_stay(tmp_path: Path) -> None:
    before = adapted_encoder().state_dict()
    after = run(tmp_path, lora=TEXT, steps=4, learning_rate=1e-2).published()[1]
    moved = {key for key in before if not torch.equal(before[key], after[key])}
    text = {key for key in moved if key.startswith("text.backbone")}
    assert text == {key for key in before if ".lora_" in key}
    assert any(key.startswith("image.") for key in moved)


@torch.no_grad()
def test_adapters_start_at_the_encoders_own_answers_and_merged_weights_answer_as_they_do():
    encoder, plain, tokens = adapted_encoder().eval(), tiny_dual_encoder().eval(), random_tokens(3)
    start = plain.encode_sentences(*tokens)
    assert torch.equal(encoder.encode_sentences(*tokens), start)
    for name, parameter in encoder.named_parameters():
        if "lora_B" in name:
            parameter.normal_()
    expected = encoder.encode_sentences(*tokens)
    assert float((expected - start).abs().max()) > 0.1
    plain.load_state_dict(merged(encoder.state_dict()))  # without peft
    torch.testing.assert_close(plain.encode_sentences(*tokens), expected, atol=1e-5, rtol=0)


def test_adapters_learn_at_the_rate_of_their_encoder_which_must_have_a_linear_layer():
    encoder = adapted_encoder()
    adapters = [name for name, _ in encoder.named_parameters() if ".lora_" in name]
    assert len(adapters) == 12
    loop = TrainConfig(text_learning_rate=3e-2)
    assert {peak_learning_rate(name, loop) for name in adapters} == {3e-2}
    with pytest.raises(ConfigError, match="image encoder has no linear layer"):
        add_adapters(tiny_dual_encoder(), {"image": 2, "text": 2}, seed=0)
