import numpy as np
import pytest
import torch

from medclip_dcl.errors import ConfigError
from medclip_dcl.models.image_encoder import to_input
from medclip_dcl.training.dataset import cut, draw_crops, jitter, slack_px


def images(count: int = 4, size: int = 12) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, size, size), dtype=np.uint8)


def test_factors_of_one_are_the_preprocessing_of_the_service() -> None:
    given = images()
    ones = torch.ones(4)
    ours = jitter(torch.from_numpy(given).unsqueeze(1), ones, ones)
    torch.testing.assert_close(ours, to_input(given, 12), rtol=0, atol=1e-6)


def test_jitter_is_brightness_then_contrast_about_the_mean_by_hand() -> None:
    crop = torch.tensor([[[[100, 200]]]], dtype=torch.uint8)
    seen = jitter(crop, torch.tensor([1.1]), torch.tensor([0.8]))
    # 110, 220, mean 165: 165 - .8 * 55 = 121, 165 + .8 * 55 = 209
    expected = (torch.tensor([121.0, 209.0]) / 255 - 0.5) / 0.25
    torch.testing.assert_close(seen.flatten(), expected)


def test_jitter_stays_within_black_and_white() -> None:
    crop = torch.tensor([[[[0, 255, 255, 255]]]], dtype=torch.uint8)
    seen = jitter(crop, torch.tensor([1.5]), torch.tensor([1.5]))
    assert seen.min() == -2.0
    assert seen.max() == 2.0


def test_the_bytes_of_the_image_are_left_alone() -> None:
    given = images()
    before = given.copy()
    jitter(torch.from_numpy(given).unsqueeze(1), torch.full((4,), 1.2), torch.full((4,), 0.9))
    assert np.array_equal(given, before)


def test_a_crop_is_a_window_of_the_image_and_never_a_mirror() -> None:
    image = np.arange(36, dtype=np.uint8).reshape(6, 6)
    out = np.empty((3, 3), dtype=np.uint8)
    cut(image, 2, 1, out)
    assert out.tolist() == [[13, 14, 15], [19, 20, 21], [25, 26, 27]]


def test_crops_reach_every_corner_and_factors_fill_their_range() -> None:
    views = draw_crops(np.random.default_rng(0), 4000, 8)
    assert set(views.top.tolist()) == set(views.left.tolist()) == set(range(9))
    assert 0.8 <= views.brightness.min() < 0.81
    assert 1.19 < views.brightness.max() <= 1.2
    assert 0.8 <= views.contrast.min() < 0.81
    assert 1.19 < views.contrast.max() <= 1.2
    assert views.brightness.dtype == np.float32


def test_an_input_that_would_show_small_parts_of_images_is_refused() -> None:
    assert slack_px(40, 32) == 8
    with pytest.raises(ConfigError, match=r"96 is less than 0\.8 of images\.size_px 144"):
        slack_px(144, 96)
