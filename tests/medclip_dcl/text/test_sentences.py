"""Sections by the release's own rules and by looser ones; sentences, and rules that drop them."""

import json
import re
import time
import unicodedata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_dcl.text import mimic_sections, sentences
from medclip_dcl.text.boundaries import LIST_HEAD, cut_sentences
from medclip_dcl.text.cleaning import clean_text
from medclip_dcl.text.mimic_sections import HEADER_OF, SPAN_OF, read_sections
from medclip_dcl.text.sections import cut_report, read_loose_sections
from medclip_dcl.text.sentences import broken_rule, normalise_text, split_section, text_key

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
    text = report("INDICATION: Cough.||FINDINGS: Clear.||IMPRESSION: Normal.")
    parts = mimic_sections.cut_release_report(text)
    found = {part.name: (part.body.strip(), part.section) for part in parts}
    assert found["indication"] == ("Cough.", "")
    assert found["findings"] == ("Clear.", "findings")
    assert found["impression"] == ("Normal.", "impression")


# --- Sentences


def kept(text: str) -> list[str]:
    split = split_section(text)
    return [sentence for _, sentence in split.sentences]


@pytest.mark.parametrize("row", [row for row in LAYOUTS if row["kind"] == "sentences"])
def test_golden_splits(row):
    assert kept(row["text"]) == row["expected"]


def test_every_rule_drops_what_it_says():
    rows = [row for row in LAYOUTS if row["kind"] == "rules"]
    assert {row["expected"] for row in rows} == {"", *sentences.RULES}
    for row in rows:
        assert broken_rule(row["text"]) == row["expected"], row["text"]


def test_dropped_sentences_are_counted_by_rule_and_places_keep_their_numbers():
    split = split_section("The lungs are clear. Unchanged. No effusion is seen.")
    assert split.sentences == ((0, "The lungs are clear."), (2, "No effusion is seen."))
    assert split.dropped == {"punctuation": 0, "enumerator": 0, "masked": 0, "short": 1}


def test_lengths_are_capped_and_counted(monkeypatch):
    monkeypatch.setattr(sentences, "LONGEST_SENTENCE", 20)
    monkeypatch.setattr(sentences, "LONGEST_SECTION", 60)
    split = split_section("The lungs are clear and well expanded. " * 5)
    assert split.truncated_sections == 1
    assert split.truncated_sentences == 2
    assert [sentence for _, sentence in split.sentences] == ["The lungs are clear"] * 2


def bare(text: str) -> str:
    return "".join(text.split())


_SCRAPS = (
    r"No effusion . .. ; : - -- * 1. 2) [ ] [x] | \ Dr. 1.5 cm ___ XXXX. ? ! Heart: Edema no yes "
    "clear.There e.g. (a) lungs enlarged \u2022 \u2014"
)
DRAWN = st.lists(st.sampled_from([*_SCRAPS.split(" "), "\n", "\t"]), max_size=40).map(" ".join)


@given(st.one_of(st.text(max_size=300), DRAWN))
@settings(max_examples=300, deadline=None)
def test_any_text_is_split_and_nothing_but_mark_up_is_lost(text: str) -> None:
    has_head = any(map(LIST_HEAD.fullmatch, clean_text(text).split("\n")))  # it goes to its items
    whole = bare("".join(cut_sentences(text))) == bare(clean_text(text))
    assert whole or has_head or "-" in text
    split = split_section(text)
    assert split.found - sum(split.dropped.values()) == len(split.sentences)
    assert all(sentence == normalise_text(sentence) != "" for _, sentence in split.sentences)


@given(st.text(max_size=200))
def test_forms_of_unicode_have_one_key(text: str) -> None:
    keys = {text_key(unicodedata.normalize(form, text)) for form in ("NFC", "NFD", "NFKC", "NFKD")}
    assert keys == {text_key(text)}


def test_a_short_sentence_stays_where_the_labeler_reads_something_in_it():
    left = kept("Cardiomegaly. Unchanged. Normal. Emphysema.")
    assert left == ["Cardiomegaly.", "Normal.", "Emphysema."]


def test_every_distinct_section_is_split_once():
    report = {"study_id": "s1", "subject_id": "p1", "split": "train", "impression": ""}
    same = {**report, "findings": "The lungs are clear.", "last_paragraph": ""}
    tables: list[pa.Table] = []
    parts = [[same], [{**same, "study_id": "s2"}]]
    summary = sentences.split_reports(parts, sentences.SentencesConfig(), tables.append)
    assert [table["study_id"].to_pylist() for table in tables] == [["s1"], ["s2"]]
    assert (summary["sections"], summary["distinct_sections"], summary["unique"]) == (2, 1, 1)


@pytest.mark.parametrize("token", ["___", "XXXX", "XXXXs", "_____"])
def test_de_identification_tokens_are_recognised(token):
    assert sentences.MASK.fullmatch(token)
    assert not sentences.MASK.search("XX MAXXXX a_b")


@pytest.mark.parametrize(
    "text", ["1. ", "i. ", "a. x b. x c. x ", "<a ", "&" * 9, "a.", "(", "'\"", "a", "A. b! c? "]
)
def test_time_grows_with_the_length_alone(text):
    start = time.process_time()
    split = split_section(f"{text * (20_000 // len(text))}\nThe lungs are clear. No effusion.")
    assert time.process_time() - start < 2
    assert split.found - sum(split.dropped.values()) == len(split.sentences)


@pytest.mark.real_data
def test_open_i_gives_the_known_number_of_sentences(test_data):
    lines = (test_data / "openi" / "reports.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    sections = [row[name] for row in rows for name in ("findings", "impression") if row[name]]
    splits = {text: split_section(text) for text in set(sections)}
    dropped = {
        rule: sum(splits[text].dropped[rule] for text in sections) for rule in sentences.RULES
    }
    found = sum(splits[text].found for text in sections)
    kept = sum(len(splits[text].sentences) for text in sections)
    assert (len(rows), len(sections), found, kept) == (2400, 4477, 14070, 13671)
    assert dropped == {"punctuation": 317, "enumerator": 0, "masked": 3, "short": 79}
    assert found - sum(dropped.values()) == kept
    said = [sentence for text in sections for _, sentence in splits[text].sentences]
    assert not any(sentence in {".", "1."} for sentence in said)
    assert not any(re.search(r"X{3,}\.[A-Z]", sentence) for sentence in said)
