"""Sentences are cut where they end, and the reader has a name."""

import pytest

from medclip_dcl.text.labeler import lexicon
from medclip_dcl.text.labeler.labels import read_report, read_sentence, reader_digest
from medclip_dcl.text.labeler.phrases import Polarity


@pytest.mark.parametrize(
    "text",
    [
        "No edema. Effusion.",
        "No edema.Effusion.",
        "No edema; effusion",
        "1. No edema 2. Effusion",
        "no edema\n\neffusion",
    ],
)
def test_a_negation_ends_with_its_sentence(text: str) -> None:
    polarities = [mention.polarity for mention in read_report(text).mentions]
    assert polarities == [Polarity.NEGATED, Polarity.ASSERTED]


@pytest.mark.parametrize("text", ["No 1.5 cm nodule or effusion", "No edema\nor effusion"])
def test_a_decimal_point_and_a_line_break_end_no_sentence(text: str) -> None:
    assert {mention.polarity for mention in read_report(text).mentions} == {Polarity.NEGATED}


def test_concepts_are_finer_than_findings() -> None:
    reading = read_sentence("Emphysema with a small mass, no hiatal hernia.")
    assert [(item.concept, item.polarity) for item in reading.mentions] == [
        ("Emphysema", Polarity.ASSERTED),
        ("Mass", Polarity.ASSERTED),
        ("Hernia", Polarity.NEGATED),
    ]


def test_digest_follows_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    before = reader_digest()
    assert before == reader_digest()
    monkeypatch.setitem(lexicon.PHRASES_OF, "Edema", "edema")
    assert reader_digest() != before
