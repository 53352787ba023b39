import io

import numpy as np
from PIL import Image

from api.questions import overlay_png
from api.service import image_png
from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.inference.grounding import locate


def grey(height: int, width: int, shade: int = 32768) -> GreyImage:
    pixels = np.full((height, width), shade, dtype=np.uint16)
    return GreyImage(pixels=pixels, bits_stored=16, source="png")


def overlay(grid: np.ndarray, image: GreyImage) -> np.ndarray:
    found = locate(grid.astype(np.float32), *image.pixels.shape, None)
    with Image.open(io.BytesIO(overlay_png(image, found))) as picture:
        return np.asarray(picture).astype(int)


def test_heat_lies_where_the_score_is_high_and_nowhere_else() -> None:
    grid = np.zeros((4, 4))
    grid[0, 3] = 1
    picture = overlay(grid, grey(80, 120))
    assert picture.shape == (80, 120, 3)
    np.testing.assert_array_equal(picture[70, 10], [128, 128, 128])
    red, _, blue = picture[10, 105]
    assert red > 160
    assert red > blue


def test_an_image_keeps_its_sixteen_bits() -> None:
    with Image.open(io.BytesIO(image_png(grey(4, 5, shade=12345)))) as picture:
        assert np.unique(np.asarray(picture)).tolist() == [12345]
