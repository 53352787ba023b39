"""The square: whole image, right place, anti-aliased; its filter exact, alike on every machine."""

import numpy as np
import pytest
from PIL import Image

from medclip_dcl.data import grayscale
from medclip_dcl.data.grayscale import GreyImage, resample, square


def image(pixels: np.ndarray) -> GreyImage:
    return GreyImage(pixels.astype(np.uint16), 16, "png")


def test_the_whole_image_is_stretched_onto_the_square_and_fine_stripes_become_grey():
    pixels = np.zeros((100, 300))
    pixels[20:40, 150:300] = 65535
    small = square(image(pixels), 50, False)
    assert small.shape == (50, 50)
    assert small[11:19, 27:].min() > 250
    assert small[22:].max() == 0
    assert small[:, :23].max() == 0
    pixels = np.tile([0, 65535], (400, 200))
    small = square(image(pixels), 50, False)[5:-5, 5:-5]
    assert np.abs(small.astype(int) - 128).max() <= 1
    pixels = np.array([[0, 65535], [32768, 257]])
    assert square(image(pixels), 2, False).tolist() == [[0, 255], [128, 1]]


def test_a_picture_of_its_own_size_is_what_the_filter_makes_of_it():
    shades = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    assert (square(image(shades), 256, False) == resample(grayscale._straight()[shades], 256)).all()


def test_equalised_image_uses_all_shades_alike() -> None:
    pixels = np.linspace(0, 1, 256 * 256).reshape(256, 256) ** 2 * 65535
    flat = square(image(pixels), 256, True)
    counts = np.histogram(flat, bins=8, range=(0, 256))[0]
    assert counts.max() < 1.05 * counts.min() + 512


def marked(height: int, width: int) -> np.ndarray:
    """Noise with hard black and white edges, where a filter overshoots most."""
    image = np.random.default_rng(height).integers(0, 256, (height, width), dtype=np.uint8)
    image[: height // 3, : width // 2], image[height // 3 : height // 2] = 0, 255
    return image


@pytest.mark.parametrize(("height", "width"), [(700, 901), (64, 64), (20, 300), (64, 65), (1, 9)])
def test_it_is_within_a_level_of_the_filter_in_real_numbers(height: int, width: int) -> None:
    image = marked(height, width)
    for levels in (image, image.astype(np.uint16) * 4 - (image > 0)):
        exact = levels.astype(np.float32) / (4 if levels.dtype == np.uint16 else 1)
        real = Image.fromarray(exact).resize((64, 64), Image.Resampling.BICUBIC)
        assert np.abs(resample(levels, 64) - np.clip(np.asarray(real), 0, 255)).max() < 0.9


@pytest.mark.parametrize("length", [1, 9, 30, 31, 32, 45, 64, 100, 257, 5000])
def test_no_sum_leaves_the_whole_numbers_that_float32_holds(length: int) -> None:
    down = [band.weights for band in grayscale._bands(length, 32, 12, 8)]
    across = [band.weights for band in grayscale._bands(length, 32, 11, 32)]
    largest = max(float(np.abs(weights).sum(axis=1).max()) for weights in down) * 4 * 255
    assert largest < 2**24
    kept = largest / 2**10  # four bits behind the point
    assert kept * max(float(np.abs(weights).sum(axis=1).max()) for weights in across) < 2**24
    assert all((weights.sum(axis=1) == 2**12).all() for weights in down)
