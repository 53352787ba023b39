import math

import pytest
import torch

from medclip_dcl.models.image_encoder import to_input
from tests.support.tiny_models import random_images, random_tokens, tiny_dual_encoder


@pytest.mark.parametrize("is_reduced", [False, True], ids=["float32", "autocast"])
def test_regions_and_sentences_are_unit_vectors_of_float32_also_under_autocast(is_reduced):
    model = tiny_dual_encoder().eval()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_reduced):
        regions, sentences = model(to_input(random_images(3), 64), *random_tokens(5))
    assert regions.dtype == sentences.dtype == torch.float32
    torch.testing.assert_close(regions.norm(dim=-1), torch.ones(3, 4, 4))
    torch.testing.assert_close(sentences.norm(dim=-1), torch.ones(5))
    assert model.score(regions, sentences).shape == (5, 3)


def test_seed_alone_decides_the_weights_which_are_drawn_as_declared():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = tiny_dual_encoder(seed=7).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = tiny_dual_encoder(seed=7).state_dict(), tiny_dual_encoder(seed=8).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    drawn = [key for key in first if key.endswith("projection.weight") or "convolution" in key]
    assert drawn
    assert not any(torch.equal(first[key], other[key]) for key in drawn)
    model = tiny_dual_encoder()
    words = model.text.backbone.embeddings.word_embeddings.weight
    assert words[1:].std().item() == pytest.approx(0.02, rel=0.1)
    assert not words[0].any()
    stem = model.image.backbone.embedder.embedder.convolution.weight
    assert stem.std().item() == pytest.approx(math.sqrt(2 / (8 * 49)), rel=0.15)
    assert model.region_projection.weight.abs().max() <= 16**-0.5


def test_every_weight_receives_a_gradient() -> None:
    model = tiny_dual_encoder()
    regions, sentences = model(to_input(random_images(4), 64), *random_tokens(4))
    s = model.gamma**2 * model.score(regions, sentences)
    torch.nn.functional.cross_entropy(s, torch.arange(4)).backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name


def test_gamma_is_the_root_of_the_scale_and_stays_in_range() -> None:
    model = tiny_dual_encoder()
    assert model.gamma.item() ** 2 == pytest.approx(14.0)
    for value, expected in ((0.3, 1.0), (-2.0, 1.0), (11.0, 100.0), (3.0, 9.0)):
        with torch.no_grad():
            model.gamma.fill_(value)
        model.clamp_gamma()
        assert model.gamma.item() ** 2 == pytest.approx(expected)
