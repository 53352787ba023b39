"""Sections: the release's own rules on layouts that its reports have, and looser ones."""

import json
from pathlib import Path
from typing import Any

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
_ROWS = Path(__file__).with_name("layouts.jsonl").read_text(encoding="utf-8").split("\n")
LAYOUTS = [json.loads(row) for row in _ROWS if row]
"""Texts with their sections or sentences, headers with names, sentences with the broken rule."""


def report(*lines: str) -> str:
    return "FINAL REPORT\n" + "\n".join(f" {line}" for line in lines) + "\n"


def test_headers_have_one_space_capitals_and_a_colon_and_the_last_of_several_sections_counts():
    text = report(
        "INDICATION:  Cough.", "", "FINDINGS: ", "", "Clear.", "", "IMPRESSION: No change."
    )
    assert read_sections(text) == Sections("Clear.", "No change.", "")
    text = report("IMPRESSION: Addendum.", "______", "FINDINGS: Clear.", "IMPRESSION: Final.")
    assert read_sections(text) == Sections("Clear.", "Final.", "")
    text = report("FINDINGS: Clear.", "Note: not a header.", "IMPRESSION- nor this.")
    assert read_sections(text) == Sections(
        "Clear.\n Note: not a header.\n IMPRESSION- nor this.", "", ""
    )
    assert read_sections("x\nFINDINGS: unindented.\n") == NOTHING
    assert read_sections("FINDINGS: on the first line.\n") == NOTHING
    text = report("FINDINGS: IMPRESSION: Clear.", "IMPRESSION: Normal.")
    assert read_sections(text) == Sections("IMPRESSION: Clear.", "Normal.", "")


def test_the_last_paragraph_and_last_of_all_the_comparison_stand_in():
    text = report(
        "INDICATION: Cough.", "COMPARISON: None.", "", "The lungs are clear.", "", "Done."
    )
    assert read_sections(text) == Sections("", "", "The lungs are clear.\n \n Done.")
    text = report("COMPARISON: Compared to ___, no change.", "INDICATION: Cough.")
    assert read_sections(text) == Sections("", "", "Compared to ___, no change.")
    paragraphs = report("COMPARISON: Old image.", "INDICATION: Cough.", "", "Clear.")
    assert read_sections(paragraphs) == Sections("", "", "Clear.")
    assert read_sections(report("INDICATION: Cough.", "TECHNIQUE: Portable.")) == NOTHING
    assert read_sections("") == NOTHING


def test_studies_sectioned_by_hand_are_those_of_the_release():
    assert (len(HEADER_OF), len(SPAN_OF)) == (23, 31)
    assert not HEADER_OF.keys() & SPAN_OF.keys()
    assert sum(span == (0, 0) for span in SPAN_OF.values()) == 8
    assert all(len(study) == 8 and study[0] == "5" for study in (*HEADER_OF, *SPAN_OF))
    assert all(start < end or start == end == 0 for start, end in SPAN_OF.values())
    text = " FINDINGS: no.".ljust(47, "-") + "x" * 273 + "y" * 50
    assert read_sections(text, "51410602") == Sections("", "", "x" * 273)
    assert read_sections(report("FINDINGS: Clear."), "58235663") == NOTHING
    text = report("TECHNIQUE: Heart is large.", "IMPRESSION: See above.")
    assert read_sections(text, "59279892") == Sections("", "", "Heart is large.")
    assert read_sections(text, "50000000") == Sections("", "See above.", "")
    missing = report("IMPRESSION: Clear.")
    assert read_sections(missing, "59279892") == Sections("", "Clear.", "")


def test_headers_get_their_usual_name() -> None:
    for row in (row for row in LAYOUTS if row["kind"] == "headers"):
        assert section_name(row["text"]) == row["expected"]


@pytest.mark.parametrize("row", [row for row in LAYOUTS if row["kind"] == "sections"])
def test_headings_are_found_in_every_form(row: dict[str, Any]) -> None:
    assert read_loose_sections(row["text"]) == tuple(row["expected"])


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
