"""Generated patients: what their images show, what is stored of it, and what their reports say."""

import io
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pydicom
import pytest

from medclip_dcl.data.images import open_image
from medclip_dcl.synthetic.anatomy import draw_body
from medclip_dcl.synthetic.patients import draw_patient, quantize
from medclip_dcl.synthetic.radiograph import DrawnImage, box_of, draw_frontal
from medclip_dcl.synthetic.reports import (
    FINE_FINDINGS,
    TYPES,
    FineFinding,
    Meaning,
    Statement,
    draw_findings,
    draw_report,
    gallery_sentence,
    study_labels,
)
from medclip_dcl.text.labeler.lexicon import LABELS

RAMP = np.tile(np.linspace(0, 1, 47, dtype=np.float32), (33, 1))


def encoded(bits: int, *, is_inverted: bool) -> bytes:
    return replace(draw_patient(0, 0)[0], bits=bits, is_inverted=is_inverted).encode(RAMP)


@pytest.mark.parametrize("bits", [12, 16])
def test_stored_values_survive(bits: int) -> None:
    pixels = pydicom.dcmread(io.BytesIO(encoded(bits, is_inverted=False))).pixel_array
    assert np.array_equal(pixels, quantize(RAMP, bits, is_inverted=False))
    assert (pixels.min(), pixels.max()) == (0, 2**bits - 1)


def test_patients_of_another_seed_have_other_ids() -> None:
    ids = [
        draw_patient(number, seed)[0].study.subject_id for seed in range(3) for number in range(300)
    ]
    assert len(set(ids)) == 900


def test_monochrome1_is_stored_inverted_and_the_gate_opens_it():
    inverted = encoded(12, is_inverted=True)
    dataset = pydicom.dcmread(io.BytesIO(inverted))
    assert dataset.PhotometricInterpretation == "MONOCHROME1"
    assert np.array_equal(dataset.pixel_array, 4095 - quantize(RAMP, 12, is_inverted=False))
    images = [open_image(file) for file in (encoded(12, is_inverted=False), inverted)]
    assert images[0].source == "dicom"
    assert images[1].inverted
    difference = images[0].pixels.astype(int) - images[1].pixels.astype(int)
    assert np.abs(difference).max() <= 2
    assert images[0].pixels[:, -1].mean() > images[0].pixels[:, 0].mean()


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
        middle = np.flatnonzero(inside.any(0)).mean()  # of the box; right is left of the image
        assert (middle < inside.shape[1] / 2) == (finding.side == "right")


EFFUSION, LEFT_EFFUSION = FineFinding("effusion"), FineFinding("effusion", "left")


def study(seed: int) -> tuple[dict[FineFinding, float], list[Statement]]:
    generator = np.random.default_rng(seed)
    shown = draw_findings(generator)
    return shown, draw_report(shown, "AP", generator)[1]


STUDIES = [study(seed) for seed in range(400)]


@pytest.mark.parametrize(
    ("meaning", "shown", "expected"),
    [
        (Meaning(asserted=LEFT_EFFUSION), [LEFT_EFFUSION], True),
        (Meaning(asserted=EFFUSION), [LEFT_EFFUSION], True),
        (Meaning(asserted=FineFinding("effusion", "right")), [LEFT_EFFUSION], False),
        (Meaning(asserted=EFFUSION), [], False),
        (Meaning(negated=("effusion",)), [LEFT_EFFUSION], False),
        (Meaning(negated=("edema", "effusion")), [LEFT_EFFUSION], False),
        (Meaning(negated=("edema",)), [LEFT_EFFUSION], True),
        (Meaning(negated=tuple(TYPES)), [], True),
    ],
)
def test_meaning_holds_of_the_images_it_is_true_of(meaning, shown, expected):
    assert meaning.holds(shown) is expected


def test_reports_say_nothing_false() -> None:
    for shown, statements in STUDIES:
        assert statements
        assert all(statement.meaning.holds(shown) for statement in statements)


def test_labels_agree_with_truth_and_report() -> None:
    values: Counter[int] = Counter()
    for shown, statements in STUDIES:
        labels = study_labels(statements)
        assert set(labels) <= set(LABELS)
        true = {label for finding in shown for label in TYPES[finding.type].labels}
        for label, value in labels.items():
            if label != "No Finding":
                assert (label in true) == (value != 0)
        assert labels.get("No Finding", 0) == (not shown)
        values.update(labels.values())
    assert set(values) == {-1, 0, 1}


def test_gallery_sentences_tell_fine_findings_apart() -> None:
    assert len({gallery_sentence(finding) for finding in FINE_FINDINGS}) == len(FINE_FINDINGS)
    sentence = gallery_sentence(FineFinding("pneumothorax", "right"))
    assert sentence == "There is a right pneumothorax."
