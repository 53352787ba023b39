"""Ways of speaking by kind: a table of sentences with what each claims, its zone and severity."""

import csv
from collections import Counter
from pathlib import Path

_TABLE = Path(__file__).with_name("sentences.csv")
ROWS = list(csv.DictReader(_TABLE.read_text(encoding="utf-8").splitlines()))


def test_the_table_is_large_and_repeats_nothing() -> None:
    assert len({row["sentence"] for row in ROWS}) == len(ROWS) >= 300
    assert min(Counter(row["kind"] for row in ROWS).values()) >= 10
