"""What the sections of studies come to, by hand."""

from medclip_dcl.data.data_check import count_claims, read_section, survey
from medclip_dcl.text.labeler.labels import read_claims
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.sentences import SentencesConfig

SECTIONS = {
    "both": ["There is a left pleural effusion. Compared to ___.", "No pneumothorax."],
    "hidden": ["XXXX."],
    "normal": ["No acute process. The lungs are clear."],
}


def test_studies_sentences_masks_and_findings_are_counted() -> None:
    texts = {text for sections in SECTIONS.values() for text in sections}
    read = {text: read_section(text, SentencesConfig()) for text in texts}
    found = survey(SECTIONS, read)
    assert found["usable"] == {"both", "normal"}
    assert tuple(found[name] for name in ("sentences", "masked_sentences", "masked_reports")) == (
        5,
        1,
        1,
    )
    assert found["dropped"]["masked"] == 1
    assert found["labels"]["Pleural Effusion"]["present"] == 1
    assert found["labels"]["Pneumothorax"] == {"present": 0, "absent": 1, "uncertain": 0}
    assert found["labels"]["No Finding"]["present"] == 1


def test_what_one_section_asserts_no_other_takes_back() -> None:
    sections = ["There is pneumonia.", "No pneumonia. Possible edema.", "No edema."]
    read = {text: read_section(text, SentencesConfig()) for text in sections}
    labels = survey({"s": sections}, read)["labels"]
    assert labels["Pneumonia"] == {"present": 1, "absent": 0, "uncertain": 0}
    assert labels["Edema"] == {"present": 0, "absent": 0, "uncertain": 1}
    assert labels["No Finding"]["present"] == 0


def test_every_finding_has_a_count() -> None:
    counts = count_claims([read_claims("Mild cardiomegaly.")])
    assert tuple(counts) == LABELS
    assert counts["Cardiomegaly"]["present"] == 1
