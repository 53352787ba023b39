"""Whole reports by style, written by people who had not seen the reader: score of each style.

Set e alone was written by one who had, in forms that were likely to fail.

Text about the image alone counts: findings, impression, addenda. `either`: no label and a denial
are both right, as "lungs are clear" implies; `any`: contested, not scored. Reports in another
language have no labels.
"""

import json
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from medclip_dcl.text.boundaries import cut_sentences
from medclip_dcl.text.cleaning import fold_unicode
from medclip_dcl.text.labeler.labels import ReportLabels, read_report, report_labels_of
from medclip_dcl.text.sections import read_loose_sections
from medclip_dcl.text.sentences import split_section

_FILES = sorted((Path(__file__).parents[2] / "data" / "reports").glob("*.jsonl"))
REPORTS = [
    {**json.loads(line), "file": file.stem}
    for file in _FILES
    for line in file.read_text(encoding="utf-8").splitlines()
]
LEAST, LEAST_OF_FILE = 0.95, 0.90
"""Share of a style's claims that are read as expected: of all files, and of each."""


def read(text: str) -> ReportLabels:
    sections = [section for section in read_loose_sections(text) if section]
    sentences = [text for section in sections for _, text in split_section(section).sentences]
    return report_labels_of(map(read_report, sentences))


def score(report: dict[str, Any], labels: ReportLabels) -> tuple[int, int]:
    """Right and all claims: those expected, and those read where none is expected."""
    kinds = ("asserted", "negated", "uncertain")
    expected = {name: kind for kind in kinds for name in report[kind]}
    claimed = {name: kind for kind in kinds for name in getattr(labels, kind)}
    contested = {*report.get("any", ())}
    wanted = expected.keys() - contested
    right = sum(claimed.get(name) == expected[name] for name in wanted)
    surplus = {(name, claimed[name]) for name in claimed.keys() - expected.keys() - contested}
    surplus -= {(name, "negated") for name in report.get("either", ())}
    judged = report["normal"] is not None
    right += judged and report["normal"] == labels.normal
    return right, len(wanted) + len(surplus) + judged


@pytest.mark.parametrize("style", sorted({report["style"] for report in REPORTS}))
def test_reports_of_a_style_are_read(style: str) -> None:
    rights, wholes = Counter[str](), Counter[str]()
    wrong = []
    for report in (report for report in REPORTS if report["style"] == style):
        right, whole = score(report, read(report["text"]))
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
    assert [report["id"] for report in foreign if read(report["text"])] == []
