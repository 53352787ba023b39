from functools import cache

import numpy as np
import pytest

from medclip_dcl.synthetic.anatomy import draw_body
from medclip_dcl.synthetic.radiograph import DrawnImage, box_of, draw_frontal
from medclip_dcl.synthetic.reports import FINE_FINDINGS, FineFinding


@cache
def image(*findings: FineFinding) -> DrawnImage:
    body = draw_body(np.random.default_rng(3))
    return draw_frontal(body, dict.fromkeys(findings, 0.5), 128, np.random.default_rng(4))


def test_a_box_bounds_the_pixels_above_the_level():
    mask = np.zeros((6, 8), dtype=np.float32)
    mask[2:4, 3:7] = 1.0
    mask[5, 0] = 0.2  # below 30 % of the maximum
    assert box_of(mask) == (3, 2, 4, 2)


@pytest.mark.parametrize("finding", FINE_FINDINGS, ids=lambda finding: finding.name)
def test_a_finding_changes_the_image_inside_its_box_and_on_its_side(finding: FineFinding) -> None:
    drawn = image(finding)
    change = np.abs(drawn.pixels - image().pixels)
    inside = np.zeros(change.shape, dtype=bool)
    for x, y, width, height in drawn.boxes[finding]:
        assert 0 <= x < x + width <= inside.shape[1]
        assert 0 <= y < y + height <= inside.shape[0]
        inside[y : y + height, x : x + width] = True
    least = 0.25 if finding.type == "scoliosis" else 0.7  # a bent spine takes the midline along
    assert change[inside].sum() > least * change.sum()
    assert change[inside].mean() > 2 * change[~inside].mean()
    if finding.side and finding.type not in {"central line", "pacemaker"}:  # which end in the heart
        columns = np.flatnonzero(inside.any(0))
        is_left_of_the_image = columns.mean() < inside.shape[1] / 2
        assert is_left_of_the_image == (finding.side == "right")
