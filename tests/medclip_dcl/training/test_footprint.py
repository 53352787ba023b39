"""Counted bytes are those that a real forward pass holds."""

import psutil
import pytest
import torch

from medclip_dcl.config import Config
from medclip_dcl.model.dual_encoder import DualEncoder
from medclip_dcl.training.footprint import training_footprint
from tests.synthetic.films import tiny_text_config

TEXT = tiny_text_config()


def recipe(**train: object) -> Config:
    return Config.model_validate(
        {
            "work": "unused",
            "model": {
                "image": {"depths": [1, 1], "widths": [8, 16], "input_px": 32},
                "text": {"max_tokens": 16},
                "similarity": {"dim": 16},
            },
            "images": {"size_px": 40},
            "train": {"global_batch": 8, **train},
        }
    )


def test_weights_gradients_and_moments_are_counted_by_the_number() -> None:
    config = recipe()
    encoder = DualEncoder(config.model, TEXT)
    numbers = sum(item.numel() for item in encoder.parameters())
    found = training_footprint(config, TEXT)
    assert found.parameters == numbers
    assert found.gradients == 4 * numbers
    assert found.moments == 8 * numbers
    buffers = sum(item.numel() * item.element_size() for item in encoder.buffers())
    assert found.weights == 4 * numbers + buffers
    assert found.batches == 3 * 8 * 32 * 32
    assert found.regions == 4 * 4
    assert found.checkpoint == found.weights + found.moments


def test_activations_are_what_a_real_forward_pass_holds() -> None:
    """ResNet-18 and four films: what the process grows by while the scores are kept."""
    config = Config.model_validate(
        {
            "work": "unused",
            "model": {"image": {"input_px": 256}, "text": {"max_tokens": 16}},
            "train": {"global_batch": 4},
        }
    )
    encoder = DualEncoder(config.model, TEXT).train()
    pixels, ids = torch.zeros(4, 1, 256, 256), torch.ones(4, 16, dtype=torch.int64)
    process = psutil.Process()
    before = process.memory_info().rss
    kept = encoder.score(*encoder(pixels, ids, torch.ones_like(ids)))
    grown = process.memory_info().rss - before
    assert kept.requires_grad
    assert training_footprint(config, TEXT).activations == pytest.approx(grown, rel=0.25)


def test_processes_share_the_batch_and_its_activations() -> None:
    one, four = (training_footprint(recipe(processes=count), TEXT) for count in (1, 4))
    assert four.weights == one.weights
    assert one.activations / 4 < four.activations < one.activations / 3
    assert four.total < one.total


def test_half_precision_and_checkpointing_need_less() -> None:
    plain = training_footprint(recipe(), TEXT).activations
    assert training_footprint(recipe(precision="bf16"), TEXT).activations < plain
    assert training_footprint(recipe(gradient_checkpointing="both"), TEXT).activations < plain


def test_any_backbone_is_counted() -> None:
    backbone = {"model_type": "dinov2", "image_size": 64, "patch_size": 16, "hidden_size": 16}
    backbone |= {"num_hidden_layers": 1, "num_attention_heads": 2}
    config = Config.model_validate(
        {
            "work": "unused",
            "images": {"size_px": 64},
            "model": {"image": {"kind": "backbone", "backbone": backbone, "input_px": 64}},
            "train": {"global_batch": 4},
        }
    )
    found = training_footprint(config, TEXT)
    assert found.regions == 4 * 4
    assert found.activations > 4 * 17 * 16 * 4  # the states of 16 patches and [CLS], at least
