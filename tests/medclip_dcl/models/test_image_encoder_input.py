import numpy as np
import torch

from medclip_dcl.models.image_encoder import to_input


def test_black_grey_and_white_become_minus_two_zero_and_two() -> None:
    levels = torch.tensor([[0, 51], [204, 255]], dtype=torch.uint8).unsqueeze(0)
    expected = torch.tensor([[-2.0, -1.2], [1.2, 2.0]])
    torch.testing.assert_close(to_input(levels, 2)[0, 0], expected)


def test_shrinking_averages_instead_of_skipping() -> None:
    image = np.zeros((1, 64, 64), dtype=np.uint8)
    image[:, :, ::2] = 255  # stripes of one pixel: picking pixels gives black or white
    inner = to_input(image, 16)[0, 0, 4:-4, 4:-4]
    assert inner.abs().max() < 0.1


def test_whole_image_is_used() -> None:
    image = np.zeros((1, 64, 64), dtype=np.uint8)
    image[:, :8, :8] = 255
    pixels = to_input(image, 32)[0, 0]
    assert pixels[0, 0] > 1.9
    assert pixels[16:, 16:].max() < -1.9
