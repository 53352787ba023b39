"""Sections: the release's own rules on layouts that its reports have, and looser ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_dcl.text.cleaning import clean_text
from medclip_dcl.text.mimic_sections import (
    HEADER_OF,
    SPAN_OF,
    Sections,
    cut_release_report,
    read_sections,
    section_name,
)
from medclip_dcl.text.sections import cut_report, read_loose_sections

NOTHING = Sections("", "", "")


def report(*lines: str) -> str:
    return "FINAL REPORT\n" + "\n".join(f" {line}" for line in lines) + "\n"


def test_findings_and_impression_are_found() -> None:
    text = report(
        "INDICATION:  Cough.", "", "FINDINGS: ", "", "Clear.", "", "IMPRESSION: No change."
    )
    assert read_sections(text) == Sections("Clear.", "No change.", "")


def test_last_of_several_sections_counts() -> None:
    text = report("IMPRESSION: Addendum.", "______", "FINDINGS: Clear.", "IMPRESSION: Final.")
    assert read_sections(text) == Sections("Clear.", "Final.", "")


def test_header_has_one_space_capitals_and_a_colon() -> None:
    text = report("FINDINGS: Clear.", "Note: not a header.", "IMPRESSION- nor this.")
    assert read_sections(text) == Sections(
        "Clear.\n Note: not a header.\n IMPRESSION- nor this.", "", ""
    )
    assert read_sections("x\nFINDINGS: unindented.\n") == NOTHING
    assert read_sections("FINDINGS: on the first line.\n") == NOTHING


def test_headers_on_one_line_are_one_header() -> None:
    text = report("FINDINGS: IMPRESSION: Clear.", "IMPRESSION: Normal.")
    assert read_sections(text) == Sections("IMPRESSION: Clear.", "Normal.", "")


def test_last_paragraph_stands_in() -> None:
    text = report(
        "INDICATION: Cough.", "COMPARISON: None.", "", "The lungs are clear.", "", "Done."
    )
    assert read_sections(text) == Sections("", "", "The lungs are clear.\n \n Done.")


def test_comparison_stands_in_last_of_all() -> None:
    text = report("COMPARISON: Compared to ___, no change.", "INDICATION: Cough.")
    assert read_sections(text) == Sections("", "", "Compared to ___, no change.")
    paragraphs = report("COMPARISON: Old image.", "INDICATION: Cough.", "", "Clear.")
    assert read_sections(paragraphs) == Sections("", "", "Clear.")


def test_headers_without_any_text_of_use_give_nothing() -> None:
    assert read_sections(report("INDICATION: Cough.", "TECHNIQUE: Portable.")) == NOTHING
    assert read_sections("") == NOTHING


def test_studies_sectioned_by_hand_are_those_of_the_release() -> None:
    assert (len(HEADER_OF), len(SPAN_OF)) == (23, 31)
    assert not HEADER_OF.keys() & SPAN_OF.keys()
    assert sum(span == (0, 0) for span in SPAN_OF.values()) == 8
    assert all(len(study) == 8 and study[0] == "5" for study in (*HEADER_OF, *SPAN_OF))
    assert all(start < end or start == end == 0 for start, end in SPAN_OF.values())


def test_custom_characters_are_the_text_whatever_the_headers_say() -> None:
    text = " FINDINGS: no.".ljust(47, "-") + "x" * 273 + "y" * 50
    assert read_sections(text, "51410602") == Sections("", "", "x" * 273)
    assert read_sections(report("FINDINGS: Clear."), "58235663") == NOTHING


def test_custom_header_holds_the_report() -> None:
    text = report("TECHNIQUE: Heart is large.", "IMPRESSION: See above.")
    assert read_sections(text, "59279892") == Sections("", "", "Heart is large.")
    assert read_sections(text, "50000000") == Sections("", "See above.", "")
    missing = report("IMPRESSION: Clear.")
    assert read_sections(missing, "59279892") == Sections("", "Clear.", "")


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("IMPRESSION", "impression"),
        ("CONCLUSION", "impression"),
        ("IMPRESSON", "impression"),
        ("FINDINGS AND IMPRESSION", "impression"),
        ("FINIDNGS", "findings"),
        ("REFERENCE FINDINGS", "findings"),
        ("REFERENCE EXAM", "comparison"),
        ("CHEST, TWO VIEWS", "findings"),
        ("PA AND LATERAL VIEWS OF THE CHEST", "findings"),
        ("PATIENT HISTORY", "history"),
        ("REASON FOR EXAM", "indication"),
        ("NDICATION", "impression"),
        ("EXAMINATION", "examination"),
        ("RECOMMENDATION(S)", "recommendations"),
        ("FINAL ADDENDUM", "addendum"),
        ("WETREAD", "wet read"),
        ("OPINION", "opinion"),
    ],
)
def test_headers_get_their_usual_name(header: str, name: str) -> None:
    assert section_name(header) == name


@pytest.mark.parametrize(
    ("text", "sections"),
    [
        ("FINDINGS: Clear.\nIMPRESSION:\nNormal.", Sections("Clear.", "Normal.", "")),
        ("INDICATION: Cough. FINDINGS: Clear. IMPRESSION: Normal.", ("Clear.", "Normal.", "")),
        ("\tOPINION: Normal.", Sections("", "Normal.", "")),
        ("TECHNIQUE: Portable.\n\nClear lungs.\n\nDone.", ("Clear lungs.\n\nDone.", "", "")),
        ("First line.\n\nSecond line.", Sections("", "", "First line.\n\nSecond line.")),
        ("Note: no header. Ratio 3:1.", Sections("", "", "Note: no header. Ratio 3:1.")),
        ("PC: Fever. BG: None.\nClear.", ("", "", "PC: Fever. BG: None.\nClear.")),
        ("HISTORY: Cough.", NOTHING),
        ("FINDINGS:\nIMPRESSION: ", NOTHING),
    ],
)
def test_other_layouts_are_read_too(text: str, sections: tuple[str, str, str]) -> None:
    assert read_loose_sections(text, "") == sections


@pytest.mark.parametrize(
    ("text", "sections"),
    [
        ("FINDINGS:\nLUNGS: Clear.\nABC: x.\nIMPRESSION: y.", ("LUNGS: Clear.\nABC: x.", "y.", "")),
        ("TECHNIQUE: PA.\nHEART: Large.\nLungs: Clear.", ("HEART: Large.\nLungs: Clear.", "", "")),
        ("FINDINGS: a.\nCOMPARISON: b.\nFINDINGS: c.", ("a.\n\nc.", "", "")),
        ("Clinical History\nPneumonia.\nFindings\nClear.", ("Clear.", "", "")),
        ("findings - clear. impression - normal.", ("clear.", "normal.", "")),
        ("**Findings:** Clear.\n## Impression\nNormal.", ("Clear.", "Normal.", "")),
        ("Pertinent findings: Clear. Reason for exam: cough.", ("Clear.", "", "")),
        ("Findings | Clear\nHistory | Edema", ("Clear", "", "")),
        ("History/indication: edema\nFindings/Impression: Clear.", ("", "Clear.", "")),
        ("Lungs are clear.\n\nIMPRESSION: Normal.", ("Lungs are clear.", "Normal.", "")),
        ("INDICATION: fall\n* no effusion\n* edema", ("* no effusion\n* edema", "", "")),
        ("exam chest findings no edema impression normal", ("no edema", "normal", "")),
        ("FINDINGS: Clear.\nADDENDUM: Edema.", ("Clear.", "Edema.", "")),
        ("FINDINGS: Edema. Clear.\nCORRECTION: No edema.", ("Clear.", "No edema.", "")),
        ("XR CHEST\nClear.\n\nXR KNEE\nFracture.", ("", "", "XR CHEST\nClear.")),
        ("PORTABLE CHEST, 06:20\nHistory: edema.\nNo effusion.", ("No effusion.", "", "")),
        (
            "Pleura: clear\nHeart: large\nComment: edema",
            ("Pleura: clear\nHeart: large\n\nedema", "", ""),
        ),
        ("There is a history\nof edema. Findings are stable.", None),
    ],
)
def test_headings_are_found_in_every_form(text: str, sections: tuple[str, str, str] | None) -> None:
    assert read_loose_sections(text) == (sections or ("", "", text))


@settings(deadline=None)  # of a busy machine
@given(st.text(max_size=300))
def test_parts_of_any_text_are_all_of_it(text: str) -> None:
    parts = cut_report(text)
    assert "".join(part.heading + part.body for part in parts) == clean_text(text)


def test_a_report_of_the_release_is_cut_as_it_is_read() -> None:
    text = report("INDICATION: Cough.", "", "FINDINGS: Clear.", "", "IMPRESSION: Normal.")
    parts = {part.name: (part.body.strip(), part.section) for part in cut_release_report(text)}
    assert parts["indication"] == ("Cough.", "")
    assert (parts["findings"], parts["impression"]) == (
        ("Clear.", "findings"),
        ("Normal.", "impression"),
    )
