"""Golden splits, and every rule that drops a sentence."""

import json
import re
import time
import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_dcl.text import sentences
from medclip_dcl.text.boundaries import LIST_HEAD, cut_sentences
from medclip_dcl.text.cleaning import clean_text
from medclip_dcl.text.sentences import broken_rule, normalise_text, split_section, text_key
from tests.medclip_dcl.text.test_sections import LAYOUTS


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
