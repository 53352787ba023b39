"""Counted bytes are those that a real forward pass holds."""

import pytest
import torch
from torch import Tensor

from medclip_dcl.models.dual_encoder import DualEncoder
from pipelines.config import Config
from pipelines.training_cost import estimate_training_memory
from testing.tiny_models import tiny_text_config

TEXT = tiny_text_config()


def make_config(**train: object) -> Config:
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
    config = make_config()
    encoder = DualEncoder(config.model, TEXT)
    numbers = sum(item.numel() for item in encoder.parameters())
    found = estimate_training_memory(config, TEXT)
    assert found.parameters == numbers
    assert found.gradients == 4 * numbers
    assert found.moments == 8 * numbers
    buffers = sum(item.numel() * item.element_size() for item in encoder.buffers())
    assert found.weights == 4 * numbers + buffers
    assert found.batches == 3 * 8 * 32 * 32
    assert found.regions == 4 * 4
    assert found.checkpoint == found.weights + found.moments


def held_by_the_graph(root: Tensor, weights: set[int]) -> int:
    """Bytes of every storage that the graph behind a tensor refers to, by walking through it."""
    found: dict[int, int] = {}
    waiting, seen = [root.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
        values = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
        values += getattr(node, "saved_tensors", ())
        for value in values:
            for item in value if isinstance(value, list | tuple) else [value]:
                if isinstance(item, Tensor):
                    storage = item.untyped_storage()
                    found[storage.data_ptr()] = storage.nbytes()
    return sum(size for storage_id, size in found.items() if storage_id not in weights)


def test_activations_are_what_the_graph_of_a_real_pass_refers_to() -> None:
    config = make_config()
    encoder = DualEncoder(config.model, TEXT).train()
    pixels, ids = torch.zeros(8, 1, 32, 32), torch.ones(8, 16, dtype=torch.int64)
    regions, sentences = encoder(pixels, ids, torch.ones_like(ids))
    scores = encoder.score(regions, sentences)
    weights = {item.untyped_storage().data_ptr() for item in encoder.parameters()}
    held = held_by_the_graph(scores, weights)
    assert held > 100_000
    assert estimate_training_memory(config, TEXT).activations == pytest.approx(held, rel=0.05)


def test_processes_share_the_batch_and_its_activations() -> None:
    one, four = (estimate_training_memory(make_config(processes=count), TEXT) for count in (1, 4))
    assert four.weights == one.weights
    assert one.activations / 4 < four.activations < one.activations / 3
    assert four.total < one.total


def test_a_batch_in_chunks_needs_the_activations_of_a_chunk_and_all_unit_vectors() -> None:
    chunk = estimate_training_memory(make_config(), TEXT).activations
    many = make_config(global_batch=80, chunk=8, freeze_batchnorm=True)
    vectors = 80 * (16 + 1) * 16 * 4  # 4 x 4 regions and a sentence of 16 numbers
    found = estimate_training_memory(many, TEXT).activations
    assert found == pytest.approx(chunk + 2 * vectors, rel=0.01)


def test_half_precision_and_checkpointing_need_less() -> None:
    plain = estimate_training_memory(make_config(), TEXT).activations
    assert estimate_training_memory(make_config(precision="bf16"), TEXT).activations < plain
    assert (
        estimate_training_memory(make_config(gradient_checkpointing="both"), TEXT).activations
        < plain
    )


def test_an_encoder_that_never_learns_needs_no_gradients() -> None:
    config = make_config(steps=10, image_frozen_steps=10)
    encoder = DualEncoder(config.model, TEXT)
    frozen = sum(item.numel() for item in encoder.image.parameters())
    found = estimate_training_memory(config, TEXT)
    assert found.gradients == 4 * (found.parameters - frozen)
