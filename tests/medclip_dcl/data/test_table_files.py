"""Table files: every form gives the same strings, and what is not a table is refused by name."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from medclip_dcl.data.table_files import read_rows
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
    named = {f"row {number}": row for number, row in enumerate(ROWS)}
    (tmp_path / "lines.json").write_text(lines)
    (tmp_path / "list.json").write_text(json.dumps(ROWS))
    (tmp_path / "named.json").write_text(json.dumps(named, indent=1))
    (tmp_path / "named.json.gz").write_bytes(gzip.compress(json.dumps(named).encode()))
    documents = ("lines.json", "list.json", "named.json", "named.json.gz")
    for name in ("t.csv", "t.csv.gz", "t.jsonl", "t.parquet", *documents):
        assert read_rows(tmp_path / name, ["id", "text"]) == WANT, name


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"id,text\n1,caf\xe9\n", "not UTF-8; save it so, or set source.fallback_encoding"),
        (b"id,other\n1,2\n", "no column"),
        (b"", "is empty"),
        (b"PK\x03\x04rest", "is an Excel workbook or a zip file"),
        (b"\xd0\xcf\x11\xe0rest", "is an Excel workbook"),
        (b"PAR1rest", "is Parquet"),
        (b"\x1f\x8brest", "is compressed"),
        (b"id,text\n1,\0\n", "bytes that are not text"),
        (b"\xff\xfei\0d", "damaged UTF-16"),
        (b"id,text\n1,a\n2,b,c\n", "row 1 .* has 3 fields.* quote texts"),
        (b"id,text,text\n1,2,3\n", "twice"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n", "pointer"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(StudyError, match=message):
        read_rows(tmp_path / "t.csv", ["id", "text"])


@pytest.mark.parametrize(
    "data",
    [
        b"id;text\n007;one, two\n8;three\n",
        b"id\ttext\n007\tone, two\n8\tthree\n",
        b"id|text\n007|one, two\n8|three\n",
        b'id,text\n007,"one, two"\n8,three\n',
        "id;text\n007;one, two\n8;three\n".encode("utf-16"),
        '\ufeffid,text\n007,"one, two"\n8,three\n'.encode("utf-16-be"),
        b"id;a,b,c;text\n007;;one, two\n8;x;three\n",
        b'id;text\n007;"one, two"\n\n8;three',
    ],
)
def test_every_usual_spelling_of_csv_is_read(tmp_path: Path, data: bytes) -> None:
    want = {"id": ["007", "8"], "text": ["one, two", "three"]}
    (tmp_path / "t.csv").write_bytes(data)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(data))
    for name in ("t.csv", "t.csv.gz"):
        assert read_rows(tmp_path / name, ["id", "text"]) == want


def test_a_name_with_another_separator_keeps_the_comma(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,a;b;c\n1,x;y\n2,z\n")
    assert read_rows(tmp_path / "t.csv", ["id", "a;b;c"])["a;b;c"] == ["x;y", "z"]


def test_what_is_set_already_is_not_recommended(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"id;text\n1;\x81\n")
    with pytest.raises(StudyError, match="neither UTF-8 nor cp1252; save it as UTF-8") as refused:
        read_rows(tmp_path / "t.csv", ["id"], "cp1252")
    assert "fallback" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.json", "[1, 2]", "lists no objects"),
        ("t.json", "[[1], [2]]", "lists no objects"),
        ("t.json", "[]", "lists no objects"),
        ("t.json", '[{"id": ' + "[" * 300 + "]" * 300 + "}]", "200 deep"),
        ("t.jsonl", '{"id": ' * 100_000 + "1" + "}" * 100_000, "200 deep"),
        ("t.jsonl", '{"id":\n' * 100_000 + "1" + "}" * 100_000, "200 deep"),
        ("t.jsonl", "1\n2\n", "one object a line"),
        ("t.jsonl", '{"id": 1, "id": 2}\n', "one object a line"),
        ("t.jsonl", '{"id": [1, {"a": 2}]}\n', "one object a line"),
    ],
)
def test_json_of_another_form_is_refused(
    tmp_path: Path, name: str, data: str, message: str
) -> None:
    """Arrow's parser ends the process where values are nested deeply."""
    (tmp_path / name).write_text(data)
    with pytest.raises(StudyError, match=message):
        read_rows(tmp_path / name, ["id"])


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("t.csv", "Doe^Jane,other\n1,2\n"),
        ("t.jsonl", '{"Doe^Jane": "1", "other": "2"}\n'),
        ("t.json", '{"Doe^Jane": "1", "other": "2"}'),
    ],
)
def test_columns_are_named_unless_they_may_be_data(tmp_path: Path, name: str, lines: str) -> None:
    """Of CSV without a header the first row is data, and JSON may map patients to reports."""
    (tmp_path / name).write_text(lines)
    for wanted in (["id"], ["id", "other"]):
        with pytest.raises(StudyError, match="among its 2, whose names may be data;") as refused:
            read_rows(tmp_path / name, wanted)
        assert "Doe" not in str(refused.value)
    with pytest.raises(StudyError, match=r"column \['id'\], only \['Doe\^Jane', 'other'\]"):
        read_rows(tmp_path / name, ["id", "other", "Doe^Jane"])  # most are there: they are names


@pytest.mark.parametrize(
    "pointer",
    [
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n",
        b"/annex/objects/SHA256E-s12--0.csv\n",
        b"../.git/annex/objects/SHA256E-s12--0.csv\n",
    ],
)
def test_a_pointer_in_place_of_a_table_is_refused(tmp_path: Path, pointer: bytes) -> None:
    (tmp_path / "t.csv").write_bytes(pointer)
    with pytest.raises(StudyError, match="is a pointer of git-LFS or git-annex; fetch"):
        read_rows(tmp_path / "t.csv", ["id"])
