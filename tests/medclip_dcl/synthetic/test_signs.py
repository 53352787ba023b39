"""Signs: a finding changes its box, on its side and in its zone."""

import numpy as np
import pytest

from medclip_dcl.synthetic.findings import FINE_FINDINGS, FineFinding
from tests.medclip_dcl.synthetic.test_radiograph import image, inside_boxes


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
