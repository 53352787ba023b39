"""Parts of the image that are called normal, enlarged or free of abnormality."""

import pytest

from medclip_dcl.text.labeler.negation import read_negation
from medclip_dcl.text.labeler.normality import read_regions
from medclip_dcl.text.labeler.phrases import Polarity, cut_clauses, find_marks


def regions(clause: str) -> tuple[set[str], bool]:
    marks = next(cut_clauses(find_marks(clause)))
    mentions, normal = read_regions(marks, read_negation(marks))
    signs = {Polarity.ASSERTED: "+", Polarity.NEGATED: "-", Polarity.UNCERTAIN: "?"}
    return {signs[item.polarity] + item.concept for item in mentions}, normal


@pytest.mark.parametrize(
    ("clause", "expected", "normal"),
    [
        ("heart is normal", "-Cardiomegaly", False),
        ("normal heart and pleura", "-Cardiomegaly -Effusion", False),
        ("heart and pleura are normal", "-Cardiomegaly -Effusion", False),
        ("heart is normal and bones are intact", "-Cardiomegaly -Fracture", False),
        ("heart is not normal", "", False),
        ("heart is enlarged", "+Cardiomegaly", False),
        ("heart is not enlarged", "-Cardiomegaly", False),
        ("possible prominence of the spleen", "?Other", False),
        ("heart is at the upper limits of normal", "", False),
        ("normal chest", "", True),
        ("otherwise normal chest", "", False),
        ("no abnormality", "", True),
        ("no pulmonary abnormality", "", True),
        ("no bony abnormality", "-Fracture", False),
        ("no abnormality of edema", "", False),
        ("left lung is clear", "", False),
    ],
)
def test_a_quality_speaks_of_its_region(clause: str, expected: str, normal: bool) -> None:
    assert regions(clause) == (set(expected.split()), normal)
