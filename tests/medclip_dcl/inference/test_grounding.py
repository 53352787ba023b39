import numpy as np
import pytest
import torch
from torch.nn import functional

from medclip_dcl.data.grayscale import GreyImage, Window
from medclip_dcl.inference.grounding import draw_heat, grid_affine, locate, upsample
from medclip_dcl.schemas import Rectangle


def delta(row, column, rows=4, columns=4):
    grid = np.zeros((rows, columns), dtype=np.float32)
    grid[row, column] = 1.0
    return grid


@pytest.mark.parametrize("size", [(64, 64), (90, 37), (31, 200)], ids=str)
@pytest.mark.parametrize("cell", [(0, 0), (1, 2), (3, 3), (2, 0)], ids=str)
def test_a_delta_peaks_inside_its_cell_s_rectangle(size, cell):
    height, width = size
    row, column = cell
    heatmap = upsample(delta(row, column), height, width)
    y, x = np.unravel_index(heatmap.argmax(), heatmap.shape)
    found = locate(delta(row, column), height, width, None)
    for peak_x, peak_y in ((x + 0.5, y + 0.5), (found.peak.x, found.peak.y)):
        assert column * width / 4 <= peak_x <= (column + 1) * width / 4
        assert row * height / 4 <= peak_y <= (row + 1) * height / 4


@pytest.mark.parametrize("size", [(64, 64), (37, 90), (5, 3)], ids=str)
def test_upsampling_agrees_with_torch_with_corners_not_aligned(size):
    grid = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    image = torch.from_numpy(grid)[None, None]
    expected = functional.interpolate(image, size=size, mode="bilinear", align_corners=False)
    assert upsample(grid, *size) == pytest.approx(expected[0, 0].numpy(), abs=1e-5)


def test_the_affine_gives_centres_of_cells_on_an_image_that_is_not_square():
    a, b, c, d, e, f = grid_affine(2, 4, Window(0, 0, 80, 100))
    column, row = 3, 1
    assert (a * column + b * row + c, d * column + e * row + f) == (70.0, 75.0)


def test_a_box_follows_what_is_connected_to_the_peak_above_a_threshold():
    grid = np.array([[0.9, 0.9, 0.0, 0.0, 0.8]] * 2 + [[0.0] * 5] * 2, dtype=np.float32)
    found = locate(grid, 40, 50, 0.45)  # cells are 10 x 10; the level is met half way between
    assert (found.box.x, found.box.y, found.box.height) == (0, 0, 20)
    assert found.box.width == pytest.approx(20, abs=1.3)
    assert found.peak.score == pytest.approx(0.9)
    found = locate(delta(1, 1) * 0.3, 40, 40, 0.5)
    assert found.box is None
    assert found.threshold == 0.5
    found = locate(delta(1, 1), 40, 40, None)
    assert found.threshold == pytest.approx((1 / 16 + 1) / 2)
    assert found.box.x <= found.peak.x <= found.box.x + found.box.width
    for level in (0.25, 0.3, -0.7):  # a flat grid is one box over the image
        flat = locate(np.full((4, 4), level, dtype=np.float32), 40, 80, None)
        assert flat.box == Rectangle(x=0, y=0, width=80, height=40)


def test_heat_lies_where_the_score_is_high_and_nowhere_else():
    image = GreyImage(np.full((80, 120), 32768, np.uint16), bits_stored=16, source="png")
    picture = draw_heat(image, [delta(0, 3)]).astype(int)
    assert picture[70, 10].tolist() == [128, 128, 128]
    red, _, blue = picture[10, 105]
    assert red > max(160, blue)
