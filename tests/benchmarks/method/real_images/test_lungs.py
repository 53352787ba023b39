"""Boxes brought to the grid and back: where they were, and nowhere else."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.method.real_images import lungs
from benchmarks.method.real_images.lungs import LEFT, RIGHT, LungImage, Shape
from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.evaluation.grounding import box_mask
from pipelines.config import Config, load_config
from testing.dicom import raster_bytes

SHAPE = Shape(64, 64, 8)
HEIGHT, WIDTH = 160, 80  # a cell is 20 x 10 pixels of the image


def box(x: float, y: float, width: float, height: float) -> np.ndarray:
    return np.array([[x, y, width, height]], dtype=float)


def image(left: np.ndarray, right: np.ndarray) -> LungImage:
    pixels = np.random.default_rng(0).integers(0, 65535, (HEIGHT, WIDTH), dtype=np.uint16)
    return LungImage("image", "patient", GreyImage(pixels, 16, "png"), {LEFT: left, RIGHT: right})


UPRIGHT = image(left=box(50, 40, 20, 80), right=box(10, 20, 20, 100))


def test_box_of_whole_cells_fills_those_cells_alone() -> None:
    grid = lungs.perfect_grid(lungs.mask_of(UPRIGHT, LEFT), "whole", SHAPE)
    expected = np.zeros((8, 8))
    expected[2:6, 5:7] = 1
    assert grid == pytest.approx(expected, abs=0.1)


def test_perfect_map_comes_back_where_its_box_is() -> None:
    mask = lungs.mask_of(UPRIGHT, LEFT)
    found = lungs.compare(lungs.perfect_grid(mask, "whole", SHAPE), mask, "whole")
    assert (found["pointed"], found["mirrored"]) == (1, 0)
    assert found["off"] < 0.1
    assert found["cells_iou"] == 1
    assert 0.85 < found["iou"] <= 1
    assert 50 / WIDTH < found["peak"] < 70 / WIDTH


@pytest.mark.parametrize("axis", [0, 1])
def test_grid_that_is_a_cell_astray_is_seen(axis: int) -> None:
    mask = lungs.mask_of(UPRIGHT, LEFT)
    astray = np.roll(lungs.perfect_grid(mask, "whole", SHAPE), 1, axis)
    found = lungs.compare(astray, mask, "whole")
    assert found["off"] == pytest.approx(1, abs=0.1)
    assert found["iou"] < 0.7


def test_grid_of_another_geometry_is_seen() -> None:
    mask = lungs.mask_of(UPRIGHT, RIGHT)
    grid = lungs.perfect_grid(mask, "biovil", Shape(512, 480, 15))
    assert lungs.compare(grid, mask, "biovil")["off"] < 0.5
    assert lungs.compare(grid, mask, "whole")["off"] > 0.5


def test_left_lung_is_found_on_the_right_of_the_picture() -> None:
    assert lungs.perfect_figures([UPRIGHT], "whole", SHAPE)["left_is_right"] == 1
    turned = image(left=UPRIGHT.boxes[RIGHT], right=UPRIGHT.boxes[LEFT])
    found = lungs.perfect_figures([UPRIGHT, turned], "whole", SHAPE)
    assert found["left_is_right"] == 0.5
    assert (found["pointed"], found["mirrored"]) == (1, 0)


def test_traced_box_of_a_perfect_map_lies_over_its_box() -> None:
    found = lungs.located_figures([UPRIGHT], SHAPE)
    assert found["pointed"] == 1
    assert found["iou"] > 0.8
    elsewhere = box_mask(box(0, 140, 10, 20), HEIGHT, WIDTH)
    grid = lungs.perfect_grid(lungs.mask_of(UPRIGHT, LEFT), "whole", SHAPE)
    assert lungs.located(grid, elsewhere) == {"pointed": 0.0, "iou": 0.0}


def test_images_with_both_lungs_are_read_by_the_recipes_own_columns(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        pixels = np.arange(80 * 60).reshape(80, 60) % 251
        (tmp_path / name).write_bytes(raster_bytes(pixels.astype(np.uint8), "png"))
    (tmp_path / "table.csv").write_text("file,who,w,h\na.png,p1,60,80\nb.png,p2,60,80\n")
    (tmp_path / "boxes.csv").write_text(
        "file,label,x,y,w,h\na.png,Right Lung,2,3,20,40\na.png,Left Lung,30,4,20,41\n"
        "b.png,Right Lung,2,3,20,40\n"
    )
    names = {"image_id": "file", "category": "label", "phrase": "label"}
    source = {
        "kind": "table",
        "root": str(tmp_path),
        "table": "table.csv",
        "columns": {"path": "file", "subject_id": "who", "width": "w", "height": "h"},
        "boxes": "boxes.csv",
        "box_columns": names | {"image_width": "", "image_height": ""},
    }
    config = Config.model_validate({"work": str(tmp_path), "source": source})
    (found,) = lungs.read_lung_images(config)
    assert (found.subject_id, found.image.pixels.shape) == ("p1", (80, 60))
    assert found.boxes[LEFT].tolist() == [[30, 4, 20, 41]]


@pytest.mark.real_data
def test_lungs_of_real_images_come_back_on_the_papers_grid(
    test_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_DATA", str(test_data))
    config = load_config(Path(__file__).parents[4] / "configs/covid_cxr.yaml")
    images = lungs.read_lung_images(config)
    assert len(images) == 26
    found = lungs.perfect_figures(images, "whole", Shape(512, 480, 15))
    assert (found["pointed"], found["mirrored"], found["left_is_right"]) == (1, 0, 1)
    assert found["off_most"] < 0.5
