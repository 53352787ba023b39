import torch

from benchmarks.fixtures.views import IMAGE, tiny_view_encoder
from medclip_dcl.image_only.settings import ViewsConfig
from medclip_dcl.models.settings import ImageEncoderConfig
from medclip_dcl.models.view_encoder import build_view_encoder


def test_views_become_unit_vectors_and_features_stand_below_the_head() -> None:
    encoder = tiny_view_encoder().eval()
    pixels = torch.randn(4, 3, 8, 8)
    vectors = encoder(pixels)
    assert vectors.shape == (4, 5)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(4))
    features = encoder.features(pixels)
    torch.testing.assert_close(features, encoder.image(pixels).mean(dim=(2, 3)))
    assert features.shape == (4, 8)


def test_gamma_is_the_papers_and_fixed() -> None:
    encoder = tiny_view_encoder()
    assert abs(encoder.gamma.item() ** 2 - 2) < 1e-6
    assert not encoder.gamma.requires_grad
    encoder.clamp_gamma()
    assert abs(encoder.gamma.item() ** 2 - 2) < 1e-6


def test_the_seed_alone_decides_the_start() -> None:
    before = torch.get_rng_state()
    one, same = (build_view_encoder(IMAGE, ViewsConfig(), 3).state_dict() for _ in range(2))
    other = build_view_encoder(IMAGE, ViewsConfig(), 4).state_dict()
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert not torch.equal(one["head.0.weight"], other["head.0.weight"])
    assert torch.equal(torch.get_rng_state(), before)


def test_resnet_18_keeps_the_resolution_of_small_images() -> None:
    encoder = build_view_encoder(
        ImageEncoderConfig(stem="cifar", channels=3, input_px=32), ViewsConfig(), 0
    )
    assert encoder.image.grid(32) == 4
    weights = sum(p.numel() for p in encoder.image.parameters())
    assert weights == 11_168_832  # torchvision's ResNet-18 less its head, with a 3 x 3 stem
