"""Texts with the claims that they make: our own in the manner of reports, and whole reports."""

import csv
import json
import re
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.method.labeler import SHORT, notation
from medclip_dcl.text.boundaries import cut_sentences
from medclip_dcl.text.cleaning import fold_unicode
from medclip_dcl.text.labeler import labels, lexicon
from medclip_dcl.text.labeler.forms import write_out
from medclip_dcl.text.labeler.phrases import Polarity, words
from medclip_dcl.text.sections import read_loose_sections
from medclip_dcl.text.sentences import split_section


def rows_of(name: str) -> list[dict[str, str]]:
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


CLAIMS, SENTENCES = rows_of("claims.csv"), rows_of("sentences.csv")
"""What is read without an exception, and ways of speaking, of which nearly all are."""
RULES = [row for row in SENTENCES if row["part"] == "rules"]


@pytest.mark.parametrize("row", CLAIMS, ids=lambda row: f"{row['kind']}: {row['text'][:60]}")
def test_every_text_makes_its_claims(row: dict[str, str]) -> None:
    read = read_sections if row["kind"] == "reports" else labels.read_claims
    assert notation(read(row["text"])) == set(row["claims"].split())


@pytest.mark.parametrize("kind", sorted({row["kind"] for row in RULES}))
def test_nearly_every_sentence_is_read_as_expected(kind: str) -> None:
    rows = [row for row in RULES if row["kind"] == kind]
    wrong = [
        row["sentence"]
        for row in rows
        if notation(labels.read_claims(row["sentence"])) != set(row["claims"].split())
    ]
    assert len(wrong) <= 0.1 * len(rows), wrong


def test_the_tables_are_large_repeat_nothing_and_hold_every_finding() -> None:
    said = {item.partition(":")[0] for row in CLAIMS for item in row["claims"].split()}
    assert {f"+{key}" for key in SHORT.values()} <= said
    assert SHORT.keys() == set(labels.FINDINGS)
    assert len({(row["kind"], row["text"]) for row in CLAIMS}) == len(CLAIMS) >= 380
    assert len({row["sentence"] for row in RULES}) == len(RULES) >= 300
    assert min(Counter(row["kind"] for row in RULES).values()) >= 10


_FILES = sorted((Path(__file__).parents[3] / "data" / "reports").glob("*.jsonl"))
REPORTS = [
    {**json.loads(line), "file": file.stem}
    for file in _FILES
    for line in file.read_text(encoding="utf-8").splitlines()
]
"""Whole reports by style, written by people who had not seen the reader.

Set e alone was written by one who had, in forms that were likely to fail.

Text about the image alone counts: findings, impression, addenda. `either`: no label and a denial
are both right, as "lungs are clear" implies; `any`: contested, not scored. Reports in another
language have no labels.
"""
LEAST, LEAST_OF_FILE = 0.95, 0.90
"""Share of a style's claims that are read as expected: of all files, and of each."""


def read_sections(text: str) -> labels.ReportLabels:
    sections = [section for section in read_loose_sections(text) if section]
    sentences = [text for section in sections for _, text in split_section(section).sentences]
    return labels.report_labels_of(map(labels.read_report, sentences))


def score(report: dict[str, Any], read: labels.ReportLabels) -> tuple[int, int]:
    """Right and all claims: those expected, and those read where none is expected."""
    kinds = ("asserted", "negated", "uncertain")
    expected = {name: kind for kind in kinds for name in report[kind]}
    claimed = {name: kind for kind in kinds for name in getattr(read, kind)}
    contested = {*report.get("any", ())}
    wanted = expected.keys() - contested
    right = sum(claimed.get(name) == expected[name] for name in wanted)
    surplus = {(name, claimed[name]) for name in claimed.keys() - expected.keys() - contested}
    surplus -= {(name, "negated") for name in report.get("either", ())}
    judged = report["normal"] is not None
    right += judged and report["normal"] == read.normal
    return right, len(wanted) + len(surplus) + judged


@pytest.mark.parametrize("style", sorted({report["style"] for report in REPORTS}))
def test_reports_of_a_style_are_read(style: str) -> None:
    rights, wholes = Counter[str](), Counter[str]()
    wrong = []
    for report in (report for report in REPORTS if report["style"] == style):
        right, whole = score(report, read_sections(report["text"]))
        rights[report["file"]] += right
        wholes[report["file"]] += whole
        wrong += [report["id"]] if right < whole else []
    assert rights.total() >= LEAST * wholes.total(), wrong
    assert min(rights[file] / wholes[file] for file in wholes) >= LEAST_OF_FILE, wrong


def test_prose_is_cut_as_pysbd_cuts_it() -> None:
    """PySBD (Sadvilkar and Neumann 2020) is an oracle for running text alone."""
    with warnings.catch_warnings():  # its regular expressions are strings with bad escapes
        warnings.simplefilter("ignore")
        import pysbd

        segmenter = pysbd.Segmenter(language="en", clean=False)
    prose = [fold_unicode(report["text"]) for report in REPORTS if report["style"] == "prose"]
    cut = [(text, cut_sentences(text)) for text in prose if not re.search(r"[?\n]|None is", text)]
    assert len(cut) > 20
    for text, sentences in cut:
        assert [sentence.strip() for sentence in segmenter.segment(text)] == sentences


def test_reports_of_other_languages_have_no_labels() -> None:
    foreign = [report for report in REPORTS if report["style"] == "foreign"]
    assert len(foreign) > 20
    assert [report["id"] for report in foreign if read_sections(report["text"])] == []


def test_prose_is_left_as_it_is() -> None:
    for text in ("No effusion is seen.", "A 2.3 cm nodule above it.", "Left-sided tube, 3:15 pm"):
        assert write_out(text) == text


def test_reports_unite_their_sentences_and_assert_over_hedges_and_hedge_over_denials():
    text = "No pneumonia. Possible pneumonia. No effusion. Left effusion. Possible effusion."
    assert notation(labels.read_claims(text)) == {"?pna", "+eff:l"}
    parts = ["Lungs are clear.", "Small left effusion.", "Degenerative changes.", "No edema."]
    assert labels.report_labels_of(map(labels.read_report, parts)) == labels.read_claims(
        " ".join(parts)
    )
    assert labels.read_claims("No acute disease. Heart size normal.").normal
    assert not labels.read_claims("No acute disease. Scoliosis.").normal
    assert not labels.read_claims("No acute disease. Possible nodule.").normal


def test_claims_survive_the_columns_of_the_artifact_and_a_text_without_any_is_false():
    claims = labels.read_claims("Left effusion. Cardiomegaly. No edema. Possible pneumonia.")
    row = claims.to_row()
    assert row["asserted"] == ["Cardiomegaly", "Pleural Effusion|left"]
    assert labels.ReportLabels.from_row(row) == claims
    assert not labels.read_claims("PA and lateral views of the chest.")
    assert labels.read_claims("Normal chest.")
    assert labels.read_claims("Possible pneumonia.")


ENTRIES = [*lexicon.PHRASES_OF.values(), *lexicon.CUES.values()]
PHRASES = [phrase for text in ENTRIES for phrase in lexicon.split_phrases(text)]
SCRAPS = st.sampled_from([*PHRASES, ",", ".", ";", "and", "\n\n", "x"])
TEXTS = st.one_of(st.text(max_size=1999), st.lists(SCRAPS, max_size=80).map(" ".join))


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_any_text_gives_disjoint_claims_about_known_findings(text: str) -> None:
    claims = labels.read_claims(text)
    asserted = set(claims.asserted)
    assert asserted | claims.negated | claims.uncertain <= set(labels.FINDINGS)
    assert not asserted & claims.negated
    assert not asserted & claims.uncertain
    assert not claims.negated & claims.uncertain
    assert not (claims.normal and (asserted or claims.uncertain))
    assert all(sides <= {"left", "right"} for sides in claims.asserted.values())


@pytest.mark.parametrize(
    "unit",
    [
        "no ",
        "no pneumothorax, ",
        "no effusion" + " , " * 900,
        "left effusion has resolved ",
        "not seen ",
        "normal heart and ",
        *("a", " ", "\t", "."),
        "cannot be ",
    ],
)
def test_time_grows_with_length_and_not_with_its_square(unit: str) -> None:
    def cpu_seconds(characters: int) -> float:
        text = (unit * characters)[:characters]
        start = time.process_time()
        labels.read_claims(text)
        return time.process_time() - start

    # About 10 times as long where it is linear, 100 times where not. A clock of CPU time may tick
    # every 10 ms, and show 0 for what took less.
    assert cpu_seconds(50_000) < 40 * max(min(cpu_seconds(5_000) for _ in range(3)), 0.01)


def test_concepts_are_finer_than_findings_and_the_digest_follows_the_words(monkeypatch):
    reading = labels.read_sentence("Emphisema with a small mass, no hiatal hernia.")
    assert [(item.concept, item.polarity) for item in reading.mentions] == [
        ("Emphysema", Polarity.ASSERTED),
        ("Mass", Polarity.ASSERTED),
        ("Hernia", Polarity.NEGATED),
    ]
    before = labels.reader_digest()
    assert before == labels.reader_digest()
    monkeypatch.setitem(lexicon.PHRASES_OF, "Edema", "edema")
    assert labels.reader_digest() != before


def test_every_concept_of_the_lexicon_has_phrases_and_a_meaning_and_every_region_denies_some():
    assert set(lexicon.PHRASES_OF) == set(lexicon.FINDINGS_OF) | set(lexicon.LEFT_OPEN_BY)
    assert not set(lexicon.FINDINGS_OF) & set(lexicon.LEFT_OPEN_BY)
    assert set(lexicon.REGIONS_OF) == set(lexicon.NEGATED_WHERE_NORMAL)
    assert set(lexicon.ASSERTED_WHERE_LARGE) <= set(lexicon.REGIONS_OF)
    named = {name for names in lexicon.NEGATED_WHERE_NORMAL.values() for name in names}
    assert named | set(lexicon.ASSERTED_WHERE_LARGE.values()) <= set(lexicon.PHRASES_OF)


def test_no_phrase_stands_in_two_lists_or_is_empty() -> None:
    texts = [*ENTRIES, *lexicon.REGIONS_OF.values()]
    lists = [{tuple(words(phrase)) for phrase in lexicon.split_phrases(text)} for text in texts]
    counts = Counter(phrase for phrases in lists for phrase in phrases)
    assert [phrase for phrase, count in counts.items() if count > 1] == []
    assert () not in counts
    assert len(counts) > 800
