from functools import cache

import numpy as np
import pytest

from medclip_dcl.synthetic.anatomy import Pose, box_of, draw_body, make_canvas
from medclip_dcl.synthetic.radiograph import DrawnImage, draw_frontal
from medclip_dcl.synthetic.reports import FINE_FINDINGS, FineFinding


@cache
def image(*findings: FineFinding, seed: int = 3, size_px: int = 128) -> DrawnImage:
    body = draw_body(np.random.default_rng(seed))
    levels = dict.fromkeys(findings, 0.5)
    return draw_frontal(body, levels, size_px, np.random.default_rng(seed + 1))


def inside_boxes(drawn: DrawnImage, finding: FineFinding) -> np.ndarray:
    mask = np.zeros(drawn.pixels.shape, dtype=bool)
    for x, y, width, height in drawn.boxes[finding]:
        assert x >= 0
        assert y >= 0
        assert x + width <= mask.shape[1]
        assert y + height <= mask.shape[0]
        mask[y : y + height, x : x + width] = True
    return mask


def test_a_box_bounds_the_pixels_above_the_level_and_points_invert_the_canvas():
    mask = np.zeros((6, 8), dtype=np.float32)
    mask[2:4, 3:7] = 1.0
    mask[5, 0] = 0.2  # below 30 % of the maximum
    assert box_of(mask) == (3, 2, 4, 2)
    assert box_of(np.zeros((3, 3), dtype=np.float32)) is None
    canvas = make_canvas(100, 90, Pose(0.03, -0.05, 0.1, 1.05))
    row, column = canvas.pixel_at(float(canvas.x[20, 70]), float(canvas.y[20, 70]))
    assert row == pytest.approx(20, abs=1e-3)
    assert column == pytest.approx(70, abs=1e-3)


@pytest.mark.parametrize("finding", FINE_FINDINGS, ids=lambda finding: finding.name)
def test_a_finding_changes_the_image_inside_its_box(finding: FineFinding) -> None:
    drawn = image(finding)
    change = np.abs(drawn.pixels - image().pixels)
    mask = inside_boxes(drawn, finding)
    least = 0.25 if finding.type == "scoliosis" else 0.7  # a bent spine takes the midline along
    assert change[mask].sum() > least * change.sum()
    assert change[mask].mean() > 2 * change[~mask].mean()


@pytest.mark.parametrize("side", ["right", "left"])
def test_patient_right_lies_on_the_left_of_the_image(side: str) -> None:
    for finding in FINE_FINDINGS:
        if finding.side != side or finding.type in {"scoliosis", "central line", "pacemaker"}:
            continue
        drawn = image(finding)
        centres = [x + width / 2 for x, _, width, _ in drawn.boxes[finding]]
        middle = drawn.pixels.shape[1] / 2
        assert all((centre < middle) == (side == "right") for centre in centres), finding
