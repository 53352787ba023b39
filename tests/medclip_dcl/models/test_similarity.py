import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_node
from onnx.reference import ReferenceEvaluator
from torch.nn.functional import cosine_similarity, normalize

from medclip_dcl.models import similarity
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.models.similarity import image_sentence_scores, region_scores, roi_align

KINDS = ("lse", "nl", "lse_nl", "mean", "global")


def unit(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(*shape, generator=generator, dtype=dtype), dim=-1)


def by_hand(
    regions: torch.Tensor, sentence: torch.Tensor, config: SimilarityConfig
) -> torch.Tensor:
    """One image, one sentence, straight from the definitions."""
    h = regions @ sentence
    local = config.tau * (torch.logsumexp(h / config.tau, 0) - math.log(len(h)))
    attention = torch.softmax(regions @ regions[h.argmax()] / config.tau, 0)
    non_local = cosine_similarity(attention @ regions, sentence, dim=0)
    return {
        "lse": local,
        "nl": non_local,
        "lse_nl": (local + non_local) / 2,
        "mean": h.mean(),
        "global": cosine_similarity(regions.mean(0), sentence, dim=0),
    }[config.kind]


@pytest.mark.parametrize("kind", KINDS)
def test_score_is_its_definition_pair_by_pair_with_and_without_gradients(kind: str) -> None:
    x, y = unit(3, 7, 5), unit(40, 5, seed=1)
    config = SimilarityConfig(kind=kind, tau=0.2)
    expected = torch.stack(
        [torch.stack([by_hand(image, text, config) for image in x]) for text in y]
    )
    few = image_sentence_scores(x, y[:4], config)
    with torch.no_grad():
        alone = image_sentence_scores(x, y[:4], config)
        many = image_sentence_scores(x, y, config)  # more texts than regions: another way
        one_region = image_sentence_scores(x[:, :1], y, config)
        assert image_sentence_scores(x, y[:0], config).shape == (0, 3)
    torch.testing.assert_close(few, expected[:4], atol=1e-12, rtol=0)
    torch.testing.assert_close(many, expected, atol=1e-12, rtol=0)
    assert torch.equal(alone, few)
    torch.testing.assert_close(one_region, y @ x[:, 0].T, atol=1e-14, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_is_that_of_the_definition(kind: str) -> None:
    x, y = unit(2, 4, 3).requires_grad_(), unit(3, 3, seed=1).requires_grad_()
    config = SimilarityConfig(kind=kind, tau=0.5)
    assert torch.autograd.gradcheck(lambda x, y: image_sentence_scores(x, y, config), (x, y))


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 10_000), tau=st.floats(0.01, 10), opposed=st.booleans())
@settings(max_examples=25, deadline=None)
def test_score_stays_between_minus_one_and_one(kind, seed, tau, opposed):
    x, y = unit(4, 6, 3, seed=seed, dtype=torch.float32), unit(5, 3, seed=seed + 1).float()
    if opposed:
        x[:, 1::2], y[0], y[1] = -x[:, ::2], x[0, 0], -x[0, 0]
    f = image_sentence_scores(x, y, SimilarityConfig(kind=kind, tau=tau))
    assert f.isfinite().all()
    assert f.abs().max() <= 1


def test_lse_is_the_maximum_when_cold_and_the_mean_when_hot() -> None:
    x, y = unit(3, 12, 8), unit(4, 8, seed=1)
    h = torch.einsum("ird,td->tir", x, y)
    cold = image_sentence_scores(x, y, SimilarityConfig(kind="lse", tau=1e-7))
    hot = image_sentence_scores(x, y, SimilarityConfig(kind="lse", tau=1e6))
    torch.testing.assert_close(cold, h.amax(-1), atol=1e-6, rtol=0)
    torch.testing.assert_close(hot, h.mean(-1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["lse", "nl", "lse_nl"])
@pytest.mark.parametrize("kept", [1 << 26, 0], ids=["kept", "redone"])
def test_blocks_of_images_change_neither_score_nor_gradient(kind, kept, monkeypatch):
    config = SimilarityConfig(kind=kind)
    monkeypatch.setattr(similarity, "_LARGEST_KEPT", kept)
    computed, scores = [], similarity._pair_scores
    monkeypatch.setattr(
        similarity, "_pair_scores", lambda x, *rest: computed.append(len(x)) or scores(x, *rest)
    )
    first: tuple[torch.Tensor, ...] = ()
    # All five images at once, two in a block, or one: a block is never less than an image.
    for block, images in ((1 << 18, [5]), (2 * 4 * 7, [2, 2, 1]), (1, [1, 1, 1, 1, 1])):
        monkeypatch.setitem(similarity._BLOCK, "cpu", block)
        x, y = unit(5, 7, 5).requires_grad_(), unit(4, 5, seed=1).requires_grad_()
        computed.clear()
        f = image_sentence_scores(x, y, config)
        found = f, *torch.autograd.grad(f.square().sum(), (x, y))
        assert computed[: len(images)] == images
        again = [] if kept else images  # for the backward pass, where they were not kept
        assert sorted(computed[len(images) :]) == sorted(again)
        first = first or found
        torch.testing.assert_close(found, first, atol=1e-13, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_leaves_no_score_beyond_one(kind: str) -> None:
    v = unit(200, 8, dtype=torch.float32)
    assert (v * v).sum(dim=1).max() > 1  # a unit vector's product with itself, rounded
    f = image_sentence_scores(v[:, None], torch.cat([v, -v]), SimilarityConfig(kind=kind))
    assert f.max() == 1
    assert f.min() == -1
    h = region_scores(v[:, None, None], torch.cat([v, -v]))
    assert (h.max(), h.min()) == (1, -1)


def test_autocast_does_not_touch_the_score_and_a_second_derivative_is_refused():
    x, y = unit(3, 7, 5, dtype=torch.float32), unit(4, 5, seed=1, dtype=torch.float32)
    expected = image_sentence_scores(x, y, SimilarityConfig())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        f = image_sentence_scores(x, y, SimilarityConfig())
    assert f.dtype == torch.float32
    assert torch.equal(f, expected)
    x, y = unit(2, 4, 3).requires_grad_(), unit(3, 3, seed=1).requires_grad_()
    f = image_sentence_scores(x, y, SimilarityConfig(kind="lse_nl"))
    (first,) = torch.autograd.grad(f.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_region_scores_are_cosines_on_the_grid() -> None:
    x, y = unit(2, 3, 4, 5), unit(6, 5, seed=1)
    h = region_scores(x, y)
    assert h.shape == (6, 2, 3, 4)
    assert h[5, 1, 2, 3].item() == pytest.approx((x[1, 2, 3] @ y[5]).item(), abs=1e-15)


@pytest.mark.parametrize(("low", "high"), [(0, 280), (-150, 560)], ids=["inside", "beyond"])
def test_pooling_equals_onnx_s_operator(low: float, high: float) -> None:
    """By its reference implementation: half-pixel, adaptive sampling."""
    features, images = torch.randn(3, 4, 15, 13), torch.arange(60) % 3
    rng = np.random.default_rng(0)
    corner, size = rng.uniform(low, high, (60, 2)), rng.uniform(3, 200, (60, 2))
    boxes = torch.from_numpy(np.hstack([corner, corner + size])).float()
    given = {"features": features.numpy(), "boxes": boxes.numpy(), "images": images.numpy()}
    how = {"spatial_scale": 1 / 32, "coordinate_transformation_mode": "half_pixel"}
    node = make_node("RoiAlign", list(given), ["y"], **how)
    (expected,) = ReferenceEvaluator(node).run(None, given)
    pooled = roi_align(features, boxes / 32, images)
    np.testing.assert_allclose(pooled, expected[..., 0, 0], atol=1e-5, rtol=0)


def test_gradient_reaches_the_map() -> None:
    features = torch.randn(1, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    box = torch.tensor([[10.0, 5.0, 77.0, 90.0]], dtype=torch.float64) / 32
    image = torch.tensor([0])
    assert torch.autograd.gradcheck(lambda f: roi_align(f, box, image), (features,))
