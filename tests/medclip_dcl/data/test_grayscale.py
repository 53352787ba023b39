"""The square: whole image, right place, anti-aliased; its filter exact, alike on every machine."""

import numpy as np
import pytest
from PIL import Image

from medclip_dcl.data import grayscale
from medclip_dcl.data.grayscale import (
    GreyImage,
    Layout,
    grey_of_array,
    padding_mask,
    resample,
    shade,
    square,
    window,
)
from medclip_dcl.data.limits import Fit


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
    # Levels 10, 20, 20, 40: as many pixels are darker as 0, 2, 2 and 3 of 3.
    few = image(np.array([[10, 20], [20, 40]]) * 257)
    assert square(few, 2, True).tolist() == [[0, 170], [170, 255]]
    assert square(image(np.full((2, 2), 77)), 2, True).tolist() == [[0, 0], [0, 0]]


def test_shades_run_from_the_darkest_word_to_the_brightest_or_back():
    words = np.array([[3, 5], [7, 5]], dtype=np.uint8)
    for inverted, (dark, bright) in ((False, (0, 65535)), (True, (65535, 0))):
        shades = shade(words, lambda values: (values / 2, values < 9), inverted=inverted)
        assert shades.pixels.tolist() == [[dark, 32768], [bright, 32768]]


def test_padding_is_a_value_or_a_range_whatever_its_sign_and_bits_were_written_as():
    stored = np.array([-5, 0, 3, 9], dtype=np.int32)
    signed, whole = Layout(16, 12, 11, signed=True), Layout(16, 16, 15, signed=True)
    for layout, padding in ((signed, -5), (signed, 4091), (whole, 65531)):
        assert padding_mask(stored, layout, padding, None).tolist() == [False, True, True, True]
    assert padding_mask(stored, whole, 3, 0).tolist() == [True, False, False, True]
    assert padding_mask(stored, whole, None, 0).all()
    unsigned = Layout(16, 16, 15, signed=False)
    assert padding_mask(stored, unsigned, 65531, None).all()


def test_a_square_shows_the_middle_or_all_within_black():
    crop, pad = (Fit(how, "nearest") for how in ("crop", "pad"))
    assert window(200, 100, 50, crop) == (0, 50, 100, 100)
    assert window(200, 100, 50, pad) == (-48, 0, 200, 200)  # 12 columns of black at the left
    assert window(200, 100, 50, Fit("crop", "nearest", resized_px=60)) == pytest.approx(
        (25 / 3, 350 / 6, 250 / 3, 250 / 3)
    )
    rows = np.repeat(np.arange(200, dtype=np.uint16)[:, None], 100, axis=1) * 257
    assert (square(image(rows), 50, False, crop)[:, 0] == np.arange(51, 151, 2)).all()
    padded = square(image(rows + 256), 50, False, pad)
    assert (padded[:, [0, 11, 37, 49]] == 0).all()
    assert (padded[:, 12:37] > 0).all()


def test_an_array_is_an_image_with_or_without_one_or_three_channels_first_or_last():
    grey = np.arange(20).reshape(4, 5)
    for values, bits in ((grey.astype(np.uint8), 8), (grey.astype(np.int16), 16), (grey / 2, 16)):
        assert grey_of_array(values).bits_stored == bits
        for given in (values, values[None], np.stack([values] * 3), np.stack([values] * 3, 2)):
            assert np.abs(grey_of_array(given).pixels - grey * (65535 / 19)).max() <= 0.5


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
