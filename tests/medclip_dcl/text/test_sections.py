"""Sections: the release's own rules on layouts that its reports have, and looser ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_dcl.text import mimic_sections
from medclip_dcl.text.cleaning import clean_text
from medclip_dcl.text.mimic_sections import HEADER_OF, SPAN_OF, read_sections
from medclip_dcl.text.sections import cut_report, read_loose_sections

NOTHING = ("", "", "")
_ROWS = Path(__file__).with_name("layouts.jsonl").read_text(encoding="utf-8").split("\n")
LAYOUTS = [json.loads(row) for row in _ROWS if row]
"""Texts with their sections or sentences, headers with names, sentences with the broken rule."""


def report(lines: str) -> str:
    return "FINAL REPORT\n" + "".join(f" {line}\n" for line in lines.split("|"))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("INDICATION:  Cough.||FINDINGS: ||Clear.||IMPRESSION: Same.", ("Clear.", "Same.", "")),
        ("IMPRESSION: Old.|______|FINDINGS: Clear.|IMPRESSION: Final.", ("Clear.", "Final.", "")),
        ("FINDINGS: IMPRESSION: Clear.|IMPRESSION: So.", ("IMPRESSION: Clear.", "So.", "")),
        ("FINDINGS: Fine.|Note: x.|IMPRESSION- y.", ("Fine.\n Note: x.\n IMPRESSION- y.", "", "")),
        # the last paragraph stands in, and last of all the comparison
        ("COMPARISON: None.||It is clear.||Done.", ("", "", "It is clear.\n \n Done.")),
        ("COMPARISON: Old image.|INDICATION: Cough.||Clear.", ("", "", "Clear.")),
        ("COMPARISON: To ___, no change.|INDICATION: Cough.", ("", "", "To ___, no change.")),
        ("INDICATION: Cough.|TECHNIQUE: Portable.", NOTHING),
    ],
)
def test_headers_have_a_space_capitals_and_a_colon_and_the_last_section_counts(lines, expected):
    assert read_sections(report(lines)) == expected


@pytest.mark.parametrize("text", ["x\nFINDINGS: unindented.\n", "FINDINGS: on line 1.\n", ""])
def test_a_header_is_below_the_first_line_and_indented(text: str) -> None:
    assert read_sections(text) == NOTHING


def test_studies_sectioned_by_hand_are_those_of_the_release():
    assert (len(HEADER_OF), len(SPAN_OF)) == (23, 31)
    assert not HEADER_OF.keys() & SPAN_OF.keys()
    assert sum(span == (0, 0) for span in SPAN_OF.values()) == 8
    assert all(len(study) == 8 and study[0] == "5" for study in (*HEADER_OF, *SPAN_OF))
    assert all(start < end or start == end == 0 for start, end in SPAN_OF.values())
    text = " FINDINGS: no.".ljust(47, "-") + "x" * 273 + "y" * 50
    assert read_sections(text, "51410602") == ("", "", "x" * 273)
    assert read_sections(report("FINDINGS: Clear."), "58235663") == NOTHING
    text = report("TECHNIQUE: Heart is large.|IMPRESSION: See above.")
    assert read_sections(text, "59279892") == ("", "", "Heart is large.")
    assert read_sections(text, "50000000") == ("", "See above.", "")
    assert read_sections(report("IMPRESSION: Clear."), "59279892") == ("", "Clear.", "")


def test_headers_get_their_usual_name() -> None:
    for row in (row for row in LAYOUTS if row["kind"] == "headers"):
        assert mimic_sections.section_name(row["text"]) == row["expected"]


@pytest.mark.parametrize("row", [row for row in LAYOUTS if row["kind"] == "sections"])
def test_headings_are_found_in_every_form(row: dict[str, Any]) -> None:
    assert read_loose_sections(row["text"]) == tuple(row["expected"])


@settings(deadline=None)  # of a busy machine
@given(st.text(max_size=300))
def test_parts_of_any_text_are_all_of_it(text: str) -> None:
    parts = cut_report(text)
    assert "".join(part.heading + part.body for part in parts) == clean_text(text)


def test_a_report_of_the_release_is_cut_as_it_is_read() -> None:
    parts = mimic_sections.cut_release_report(
        report("INDICATION: Cough.||FINDINGS: Clear.||IMPRESSION: Normal.")
    )
    found = {part.name: (part.body.strip(), part.section) for part in parts}
    assert found["indication"] == ("Cough.", "")
    assert found["findings"] == ("Clear.", "findings")
    assert found["impression"] == ("Normal.", "impression")
