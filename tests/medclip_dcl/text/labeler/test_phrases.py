"""Words in one form, the longest phrase first, one slip forgiven."""

import pytest

from medclip_dcl.text.labeler.phrases import Match, PhraseTable, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Opacities, masses & processes", ["opacity", ",", "mass", "process"]),
        ("air-space", ["air", "space"]),
        ("1.9 x 1.8 cm.", ["1.9", "x", "1.8", "cm"]),
        ("atelectasis is focus thickness", ["atelectasis", "is", "focus", "thickness"]),
        ("isn't left/right?", ["isn't", "left", "/", "right", "?"]),
        ("___ \u00e9 \u4e2d", []),
    ],
)
def test_words_come_in_one_form(text: str, expected: list[str]) -> None:
    assert words(text) == expected


TABLE = PhraseTable(
    {"pleural effusion": 1, "effusion": 2, "no": 3, "no change": 4, "emphysema": 5},
    forgiven=["pleural effusion", "emphysema"],
)


def test_the_longest_phrase_counts_and_none_overlaps() -> None:
    assert TABLE.find("no change in pleural effusions") == [Match(4, 0, 2), Match(1, 3, 5)]


def test_a_phrase_that_breaks_off_falls_back_to_a_shorter_one() -> None:
    assert TABLE.find("no pleural tube, no effusion") == [
        Match(3, 0, 1),
        Match(3, 4, 5),
        Match(2, 5, 6),
    ]


@pytest.mark.parametrize(
    "slip", ["effussion", "efusions", "effuison", "effusiom", "emphysma", "emphisema"]
)
def test_one_slip_in_a_long_word_is_forgiven(slip: str) -> None:
    assert len(TABLE.find(slip)) == 1


@pytest.mark.parametrize(
    "other", ["infusion", "efussions", "diffusion", "n", "empyema", "e" * 5000]
)
def test_other_words_are_left_alone(other: str) -> None:
    assert TABLE.find(other) == []
