"""Ways of speaking by kind: a table of sentences with what each claims."""

import csv
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.method.labeler import notation
from medclip_dcl.text.labeler.labels import read_claims

_TABLE = Path(__file__).with_name("sentences.csv")
ROWS = [
    row
    for row in csv.DictReader(_TABLE.read_text(encoding="utf-8").splitlines())
    if row["part"] == "rules"
]


def test_the_table_is_large_and_repeats_nothing() -> None:
    assert len({row["sentence"] for row in ROWS}) == len(ROWS) >= 300
    assert min(Counter(row["kind"] for row in ROWS).values()) >= 10


@pytest.mark.parametrize("kind", sorted({row["kind"] for row in ROWS}))
def test_nearly_every_sentence_is_read_as_expected(kind: str) -> None:
    rows = [row for row in ROWS if row["kind"] == kind]
    wrong = [
        row["sentence"]
        for row in rows
        if notation(read_claims(row["sentence"])) != set(row["claims"].split())
    ]
    assert len(wrong) <= 0.1 * len(rows), wrong
