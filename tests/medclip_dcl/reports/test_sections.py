"""Sections: the release's own rules on layouts that its reports have."""

import pytest

from medclip_dcl.reports.sections import Sections, read_sections, section_name


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


def test_empty_section_does_not_hide_an_earlier_one() -> None:
    assert read_sections(report("IMPRESSION: Clear.", "IMPRESSION: ", "")).impression == "Clear."


def test_header_has_one_space_capitals_and_a_colon() -> None:
    text = report("FINDINGS: Clear.", "Note: not a header.", "IMPRESSION- nor this.")
    assert read_sections(text) == Sections(
        "Clear.\n Note: not a header.\n IMPRESSION- nor this.", "", ""
    )
    assert read_sections("x\nFINDINGS: unindented.\n").findings == ""


def test_last_paragraph_stands_in() -> None:
    text = report(
        "INDICATION: Cough.", "COMPARISON: None.", "", "The lungs are clear.", "", "Done."
    )
    assert read_sections(text) == Sections("", "", "The lungs are clear.\n \n Done.")


def test_report_without_headers_stands_in_as_a_whole() -> None:
    assert read_sections("The lungs are clear.") == Sections("", "", "The lungs are clear.")
    assert read_sections("Portable film.\n\nClear.") == Sections("", "", "Clear.")


def test_headers_without_any_text_of_use_give_nothing() -> None:
    assert read_sections(report("INDICATION: Cough.", "COMPARISON: None.")) == Sections("", "", "")
    assert read_sections("") == Sections("", "", "")


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("IMPRESSION", "impression"),
        ("CONCLUSION", "impression"),
        ("IMPRESSSION", "impression"),
        ("FINDINGS AND IMPRESSION", "findings"),
        ("FINIDNGS", "findings"),
        ("CHEST, TWO VIEWS", "findings"),
        ("PA AND LATERAL VIEWS OF THE CHEST", "findings"),
        ("REASON FOR EXAM", "indication"),
        ("EXAMINATION", "examination"),
        ("WET READ", "wet read"),
    ],
)
def test_headers_get_their_usual_name(header: str, name: str) -> None:
    assert section_name(header) == name
