import colorsys
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from medclip_dcl.image_only.views import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    blur,
    color_jitter,
    luma,
    random_grayscale,
)


def pictures(count: int = 5, channels: int = 3) -> Tensor:
    return torch.rand(count, channels, 6, 7, generator=torch.Generator().manual_seed(1))


def test_a_turn_of_the_hue_is_that_of_hsv() -> None:
    images, turns = pictures(), torch.tensor([0.0, 0.1, -0.1, 0.37, 0.5])
    images[0, :, 0, 0] = 0.3  # grey has no hue
    images[1, :, 0, 0] = 0.0
    found = adjust_hue(images, turns)
    for image, turn, turned in zip(images, turns.tolist(), found, strict=True):
        for pixel, new in zip(image.flatten(1).T.tolist(), turned.flatten(1).T, strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
            expected = colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)
            assert new.tolist() == pytest.approx(expected, abs=2e-6)


def test_brightness_contrast_and_saturation_by_hand() -> None:
    image = torch.tensor([[0.2, 0.4], [0.6, 1.0], [0.0, 0.5]]).view(1, 3, 1, 2)
    grey = [0.299 * 0.2 + 0.587 * 0.6, 0.299 * 0.4 + 0.587 * 1.0 + 0.114 * 0.5]
    assert luma(image).flatten().tolist() == pytest.approx(grey)
    half, double = torch.tensor([0.5]), torch.tensor([2.0])
    assert adjust_brightness(image, double).flatten().tolist() == pytest.approx(
        [0.4, 0.8, 1.0, 1.0, 0.0, 1.0]
    )
    middle = sum(grey) / 2
    assert adjust_contrast(image, half)[0, 0, 0, 0].item() == pytest.approx(
        middle + 0.5 * (0.2 - middle)
    )
    assert adjust_saturation(image, half)[0, 1, 0, 1].item() == pytest.approx(
        grey[1] + 0.5 * (1.0 - grey[1])
    )


def test_a_factor_of_one_changes_nothing() -> None:
    images, one = pictures(), torch.ones(5)
    for change in (adjust_brightness, adjust_contrast, adjust_saturation):
        torch.testing.assert_close(change(images, one), images, atol=1e-6, rtol=0)
    torch.testing.assert_close(adjust_hue(images, torch.zeros(5)), images, atol=1e-6, rtol=0)
    assert torch.equal(blur(images, torch.zeros(5)), images)


def test_the_blur_is_a_gaussian_over_three_pixels() -> None:
    images, deviations = pictures(3), torch.tensor([0.1, 0.7, 2.0])
    for image, deviation, found in zip(
        images, deviations.tolist(), blur(images, deviations), strict=True
    ):
        line = torch.tensor([math.exp(-0.5 * (step / deviation) ** 2) for step in (-1, 0, 1)])
        line /= line.sum()
        kernel = (line.view(3, 1) * line).expand(3, 1, 3, 3)
        padded = functional.pad(image.unsqueeze(0), (1, 1, 1, 1), mode="reflect")
        expected = functional.conv2d(padded, kernel, groups=3)[0]
        torch.testing.assert_close(found, expected)


def test_each_image_is_changed_in_its_own_order_and_by_itself() -> None:
    images = pictures(3)
    order = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0], [-1, -1, -1, -1]])
    factors = torch.tensor([[1.3, 0.7, 1.2, 0.1]]).expand(3, 4)
    found = color_jitter(images, order, factors)
    steps = [adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue]
    for image, indices, result in zip(images, order.tolist(), found, strict=True):
        expected = image.unsqueeze(0)
        for number in indices:
            if number >= 0:
                expected = steps[number](expected, factors[0, number : number + 1])
        torch.testing.assert_close(result, expected[0])
    assert not torch.equal(found[0], found[1])
    assert torch.equal(found[2], images[2])


def test_only_the_chosen_images_lose_their_colours() -> None:
    images = pictures(2)
    found = random_grayscale(images, torch.tensor([True, False]))
    torch.testing.assert_close(found[0], luma(images)[0].expand(3, -1, -1))
    assert torch.equal(found[1], images[1])


def test_a_grey_image_has_no_colours_to_change() -> None:
    images, factors = pictures(2, channels=1), torch.tensor([0.3, 1.7])
    torch.testing.assert_close(adjust_saturation(images, factors), images)
    assert torch.equal(adjust_hue(images, factors), images)
    assert torch.equal(random_grayscale(images, torch.tensor([True, True])), images)
