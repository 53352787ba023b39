"""The polarity at every concept of a clause."""

import pytest

from medclip_dcl.text.labeler.negation import read_negation
from medclip_dcl.text.labeler.phrases import cut_clauses, find_marks


def moods(clause: str) -> list[str]:
    """The first letter of the polarity of each concept: a, n, u or p."""
    marks = next(cut_clauses(find_marks(clause)))
    pairs = zip(marks, read_negation(marks), strict=True)
    return [polarity.value[0] for mark, polarity in pairs if mark.concept]


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        ("edema and effusion", "aa"),
        ("no edema, effusion, or mass", "nnn"),
        ("no edema, effusion", "nn"),
        ("no edema, stable effusion", "na"),
        ("no edema, large effusion, or mass", "nnn"),
        ("no edema is seen, effusion", "na"),
        ("no edema with effusion", "na"),
        ("no change in edema", "a"),
        ("not without edema", "a"),
        ("possible edema or effusion", "uu"),
        ("possible edema, stable effusion", "ua"),
        ("no edema to suggest effusion", "nn"),
        ("edema versus effusion", "uu"),
        ("no edema versus effusion", "nn"),
        ("edema and effusion have resolved", "nn"),
        ("edema is stable and effusion has resolved", "an"),
        ("resolved edema", "n"),
        ("resolved right basilar and left edema", "n"),
        ("edema has not resolved", "a"),
        ("edema is excluded", "n"),
        ("edema cannot be excluded", "u"),
        ("cannot exclude edema", "u"),
        ("edema is not seen", "n"),
        ("edema is not seen on the lateral view", "a"),
        ("edema may not be seen", "u"),
        ("history of edema", "p"),
    ],
)
def test_every_concept_has_its_mood(clause: str, expected: str) -> None:
    assert "".join(moods(clause)) == expected
