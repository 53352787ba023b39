"""Tables of any format become columns of strings."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from medclip_dcl.data.tabular import read_rows
from medclip_dcl.errors import StudyError

ROWS = [{"id": "007", "text": "one\ntwo"}, {"id": "8", "text": None}]
WANT = {"id": ["007", "8"], "text": ["one\ntwo", ""]}
CSV = 'text,id\n"one\ntwo",007\n,8\n'


def test_all_formats_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(CSV)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    lines = "\n".join(json.dumps(row) for row in ROWS)
    (tmp_path / "t.jsonl").write_text(lines)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "t.parquet")
    for name in ("t.csv", "t.csv.gz", "t.jsonl", "t.parquet"):
        assert read_rows(tmp_path / name, ["id", "text"]) == WANT, name


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"id,text\n1,caf\xe9\n", "cannot be read"),
        (b"id,other\n1,2\n", "no column"),
        (b"", "cannot be read"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n", "pointer"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(StudyError, match=message):
        read_rows(tmp_path / "t.csv", ["id", "text"])


def test_nested_column_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"id": [1, 2]}\n')
    with pytest.raises(StudyError, match="lists"):
        read_rows(tmp_path / "t.jsonl", ["id"])
