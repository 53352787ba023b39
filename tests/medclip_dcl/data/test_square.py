"""The square: whole image, right place, anti-aliased."""

import numpy as np

from medclip_dcl.data.grayscale import GreyImage, square


def image(pixels: np.ndarray) -> GreyImage:
    return GreyImage(pixels.astype(np.uint16), 16, "png")


def test_shades_keep_their_place_when_nothing_is_resized() -> None:
    pixels = np.array([[0, 65535], [32768, 257]])
    assert square(image(pixels), 2, False).tolist() == [[0, 255], [128, 1]]


def test_image_is_stretched_onto_the_square() -> None:
    pixels = np.zeros((100, 300))
    pixels[20:40, 150:300] = 65535
    small = square(image(pixels), 50, False)
    assert small.shape == (50, 50)
    assert small[11:19, 27:].min() > 250
    assert small[22:].max() == 0
    assert small[:, :23].max() == 0


def test_fine_stripes_become_grey_and_no_pattern() -> None:
    pixels = np.tile([0, 65535], (400, 200))
    small = square(image(pixels), 50, False)[5:-5, 5:-5]
    assert np.abs(small.astype(int) - 128).max() <= 1


def test_equalised_image_uses_all_shades_alike() -> None:
    pixels = np.linspace(0, 1, 256 * 256).reshape(256, 256) ** 2 * 65535
    flat = square(image(pixels), 256, True)
    counts = np.histogram(flat, bins=8, range=(0, 256))[0]
    assert counts.max() < 1.05 * counts.min() + 512


def test_constant_image_stays_black() -> None:
    assert not square(image(np.zeros((9, 9))), 4, True).any()
