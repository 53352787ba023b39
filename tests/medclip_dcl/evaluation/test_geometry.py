import numpy as np
import pytest

from medclip_dcl.evaluation.geometry import Window, cut, heatmap, scaled, window_of


def test_the_paper_sees_the_whole_image():
    assert window_of("paper", 300, 200) == Window(0, 0, 200, 300)
    image = np.arange(16, dtype=np.uint8).reshape(4, 4)
    assert cut(image, Window(0, 0, 200, 300), 300, 200) is image


@pytest.mark.parametrize(
    ("height", "width", "window"),
    [
        (512, 512, Window(16, 16, 480, 480)),
        (3056, 2544, Window(79, 335, 2385, 2385)),  # 480 * 2544 / 512; (3056 - 2385) / 2 = 335.5
        (101, 200, Window(53, 3, 94, 94)),  # 94.69 cut; (101 - 94) / 2 = 3.5: 3 above, 4 below
    ],
)
def test_biovil_sees_a_central_square_of_the_shorter_side(height, width, window):
    assert window_of("biovil", height, width) == window


def test_a_cut_image_shows_what_lies_in_the_window():
    # An image of 64 x 128 pixels whose grey is its column: the prepared square squeezes columns.
    square = np.tile(np.rint(np.linspace(0, 126, 64)).astype(np.uint8), (64, 1))
    window = Window(32, 0, 64, 64)
    found = cut(square, window, 64, 128)
    assert found.shape == (64, 64)
    expected = 32 + np.arange(64)  # columns 32 to 95 of the image, one each
    assert np.abs(found[10].astype(int) - expected).max() <= 1


def test_a_heatmap_has_no_score_where_the_model_saw_nothing():
    grid = np.array([[1.0, 0.0], [0.0, 0.0]])
    spread = heatmap(grid, "paper", Window(2, 1, 4, 4), 6, 8)
    assert np.isnan(spread).sum() == 48 - 16
    assert not np.isnan(spread[1:5, 2:6]).any()
    assert np.unravel_index(np.nanargmax(spread), spread.shape) == (1, 2)


def test_smoothing_is_a_gaussian_of_one_and_a_half_cells():
    grid = np.zeros((15, 15))
    grid[7, 7] = 1.0
    smooth = heatmap(grid, "biovil", Window(0, 0, 15, 15), 15, 15)
    assert smooth.sum() == pytest.approx(1.0, abs=1e-5)
    assert smooth[7, 8] / smooth[7, 7] == pytest.approx(np.exp(-1 / (2 * 1.5**2)), abs=1e-5)
    plain = heatmap(grid, "paper", Window(0, 0, 15, 15), 15, 15)
    assert plain[7, 7] == 1.0


def test_a_window_on_a_smaller_image_stays_within_it():
    assert scaled(Window(79, 335, 2385, 2385), 0.1, 0.1, 306, 254) == Window(8, 34, 238, 238)
    assert scaled(Window(53, 3, 93, 93), 0.01, 0.01, 1, 2) == Window(1, 0, 1, 1)
