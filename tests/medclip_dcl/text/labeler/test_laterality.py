"""The sides of every concept of a clause."""

import pytest

from medclip_dcl.text.labeler.laterality import read_laterality
from medclip_dcl.text.labeler.phrases import cut_clauses, find_marks


def sides(clause: str) -> str:
    """The first letters of the sides of each concept, `-` where it has none."""
    found = read_laterality(next(cut_clauses(find_marks(clause))))
    return " ".join("".join(sorted(side[0] for side in item)) or "-" for item in found.values())


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        ("edema", "-"),
        ("left effusion", "l"),
        ("effusion on the left", "l"),
        ("right and left effusions", "lr"),
        ("left effusion and edema", "l l"),
        ("effusion and edema on the left", "l l"),
        ("left effusion and right mass", "l r"),
        ("effusion on the left and mass on the right", "l r"),
        ("left effusion, cardiomegaly is seen", "l -"),
        ("mass in the left base and right apex", "lr"),
        ("small right effusion with mild adjacent edema", "r r"),
    ],
)
def test_every_concept_has_its_sides(clause: str, expected: str) -> None:
    assert sides(clause) == expected


def test_a_clause_without_concepts_has_no_sides() -> None:
    assert read_laterality(find_marks("the right and left")) == {}
