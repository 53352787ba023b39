"""Language: what is not English is noticed, however short, and has no labels."""

import pytest

from medclip_dcl.text.labeler.labels import SILENT, read_claims, read_report, report_labels_of
from medclip_dcl.text.language import count_languages, language_of, language_warning

SENTENCES = {
    "de": """Kein Pneumothorax. | Pleuraerguss links. | Herz nicht vergrößert. | Kardiomegalie. |
        Keine pneumonischen Infiltrate. | Pleuraerguesse beidseits. |
        Unauffälliger Thoraxbefund.""",
    "es": """Derrame pleural izquierdo. | Sin neumotórax. | Cardiomegalia moderada. |
        Silueta cardiaca normal. | No se observan consolidaciones. | Atelectasia basal derecha.""",
    "fr": """Pas d'épanchement pleural. | Absence de pneumothorax. | Cardiomégalie modérée. |
        Silhouette cardiaque normale. | Opacité du lobe inférieur droit. | Pas de pneumothorax.""",
    "nl": """Geen pneumothorax. | Pleuravocht links. | Hart niet vergroot. |
        Geen infiltraten zichtbaar. | Beiderzijds pleuravocht.""",
    "pt": """Sem derrame pleural. | Área cardíaca normal. | Consolidação no lobo inferior direito. |
        Seios costofrênicos livres. | Não há pneumotórax.""",
    "it": """Non versamento pleurico. | Ombra cardiaca nei limiti. | Addensamento basale destro. |
        Cardiomegalia e versamento a sinistra.""",
    "other": "Сердце не увеличено. | 未见胸腔积液。 | Δεν υπάρχει πνευμοθώρακας.",
}


@pytest.mark.parametrize("language", sorted(SENTENCES))
def test_short_sentences_of_other_languages_are_noticed_and_say_nothing(language: str) -> None:
    sentences = [" ".join(text.split()) for text in SENTENCES[language].split("|")]
    assert [text for text in sentences if language_of(text) in {"en", ""}] == []
    assert language_of(" ".join(sentences)) == language
    assert [read_claims(text) for text in sentences] == [SILENT] * len(sentences)


def test_english_is_not_taken_for_another_and_what_speaks_for_none_has_none() -> None:
    for text in (
        *("No pleural effusion. The heart is not enlarged.", "Lungs clear. Heart size normal."),
        *("Seen by Dr. van der Berg. No change.", "No acute dz. Lg R eff w/ atx."),
        *("Cardiomegaly.", "Normal chest."),
    ):
        assert language_of(text) == "en", text
    assert {language_of(text) for text in ("", "1.5", "Pneumothorax.", "Normal.")} == {""}


def test_foreign_reports_have_no_labels_and_english_ones_keep_theirs():
    assert read_claims("Pneumothorax.").asserted
    foreign = ["Herz normal groß.", "Pneumothorax.", "Kein Erguss links.", "Infiltrat rechts."]
    assert report_labels_of(map(read_report, foreign)) == SILENT
    text = "Small left effusion. No pneumothorax. Heart size is normal. Gracias por su referencia."
    assert read_claims(text).negated >= {"Pneumothorax"}


def test_a_corpus_is_warned_of_from_a_twentieth_on() -> None:
    english, german = "No effusion is seen.", "Kein Erguss."
    assert count_languages([english, german, "Normal."]) == {"en": 1, "de": 1, "": 1}
    assert language_warning({"en": 95, "de": 5}) == ""
    warning = language_warning({"en": 94, "de": 5, "fr": 1})
    assert "6 of 100 reports" in warning
    assert "German, French" in warning
    assert "claims.table" in warning
