"""Table files: every form gives the same strings, and what is not a table is refused by name."""

import csv
import gzip
import io
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from medclip_dcl.core.errors import StudyError
from medclip_dcl.data.table_files import clean_id, read_any, read_rows, take_rows, would_join


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., dict[str, list[str]]]:
    def write_and_read(data: str | bytes, columns: list[str], name: str = "t.csv", **options: str):
        data = data.encode() if isinstance(data, str) else data
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return take_rows(read_any(tmp_path / name, **options), name, columns)

    return write_and_read


REFUSED_CSV = [
    (b"id,text\n1,caf\xe9\n", "not UTF-8; save it so, or set source.fallback_encoding"),
    (b"id,other\n1,2\n", "no column"),
    (b"", "is empty"),
    (b"PK\x03\x04rest", "is an Excel workbook or a zip file"),
    (b"\xd0\xcf\x11\xe0rest", "is an Excel workbook"),
    (b"PAR1rest", "is Parquet"),
    (b"\x1f\x8brest", "is compressed"),
    (b"id,text\n1,\0\n", "bytes that are not text"),
    (b"\xff\xfei\0d", "damaged UTF-16"),
    (b"<table><tr><td>id</td></tr></table>", "is HTML"),
    (b"ARROW1\0\0", "is Arrow"),
    (b"id,text\n1,a\n2,b,c\n", "line 3 .* has 3 fields, and the header in line 1 2,.* quote"),
    (b'id,text\n1,"a\nb"\n2\n', "line 4 .* has 1 fields"),
    (b"id,text\n1,a\nTotal\n", "line 3 .* has 1 fields.* below the table"),
    (b"List of 2026\nid,text\n1,a\n", "line 1 .* has 1 fields, and every row below 2, "),
    (b"# by X, 2026\nid,text,a\n1,a,b\n", "line 1 .* has 2 fields, and every row below 3, "),
    (b"Export;;\n;;\nid;text;a\n1;a;b\n", "line 1 .* names one column of 3; delete lines"),
    (b"#id,text\n1,a\n", r"no column \['id'\]; it has \['#id'\]"),
    (b'id,text\n1,"a \\"b\\", c"\n', "line 2 .* has 3 fields.* write quotes in them twice"),
    # https://github.com/pandas-dev/pandas/issues/14124 and 9295: pandas shifts the columns
    (b"id,text\n1,a,\n2,b,\n", "line 1 .* every row below 3, the last of them blank"),
    (b"id,text\n1,a,\n2,b\n", "line 2 .* has 3 fields, and the header in line 1 2"),
    (b"sep=;\nid;text\n1;a;b\n2;c\n", "line 3 .* has 3 fields, and the header in line 2"),
    (b"id,text,text\n1,2,3\n", "twice"),
    # quotes that do not end, else all rows below would be one text
    (b'id,text\n1,a\n2,"b\n3,c\n4,d\n', "begin in line 3 .* do not end"),
    (b'id,text\r\n1,a\r\n"2,b\r\n3,c', "begin in line 3 .* do not end"),
    (b'id,text\r1,a\r2,"b\r3,c\r', "begin in line 3 .* do not end"),
    (b'"id,text\n1,a\n2,b\n', "begin in line 1 .* do not end"),
    (b'id;text\n1;"a ""b"" c\n', "begin in line 2 .* do not end"),
    (b'id,text\n1,"x\ny"\n2,"b""\n', "begin in line 4 .* do not end"),
    # https://github.com/JoshClose/CsvHelper/issues/308
    (b'id,text,a\n1,b,c\n2,"d\n"",e\n3,f,g\n', "begin in line 3 .* do not end"),
    (b'sep=;\nid;text\n1;"a\n', "begin in line 3 .* do not end"),
    ('id,text\n1,"é\n2,b\n'.encode("utf-16"), "begin in line 2 .* do not end"),
    (b'id,text\n1,"a\n2,b\n3,"c\n', "begin in line 2 .* end within line 4"),
    (b'id,text\n1,"a 5" tube\nb"\n', "line 3 .* has 1 fields"),
    (b'id,text\n1,"a\n5" tube"\n', "begin in line 2 .* end within line 3"),
]
REFUSED_JSON = [  # Arrow's parser ends the process where values are nested deeply
    ("t.json", "[1, 2]", "lists no objects"),
    ("t.json", "[[1], [2]]", "lists no objects"),
    ("t.json", "[]", "lists no objects"),
    ("t.json", '[{"id": ' + "[" * 300 + "]" * 300 + "}]", "200 deep"),
    ("t.jsonl", '{"id": ' * 100_000 + "1" + "}" * 100_000, "200 deep"),
    ("t.jsonl", '{"id":\n' * 100_000 + "1" + "}" * 100_000, "line 1.* is not JSON"),
    ("t.jsonl", "1\n2\n", "one object a line"),
    ("t.jsonl", '{"id": 1, "id": 2}\n', "line 1 .* twice.* one object a line"),
    ("t.jsonl", '{"id": [1, {"a": 2}]}\n', "one object a line"),
    ("t.jsonl", '{"id": 1}\n\n{"id": 2,}\n', "line 3, column .* is not JSON"),
    ("t.jsonl", '{"id": 1\n{"id": 2}\n', "line 1, column 9 .* is not JSON"),
    ("t.json", '[{"id": 1},\n {"id": 2}', "line 2, column 11 .* is not JSON"),
    ("t.json", "[\n {'id': 1}]", "line 2, column 3 .* is not JSON"),
]


@pytest.mark.parametrize(
    ("name", "data", "message"), [*(("t.csv", *row) for row in REFUSED_CSV), *REFUSED_JSON]
)
def test_tables_that_cannot_be_used_are_refused(read, name, data, message):
    for file in (name, f"{name}.gz"):
        with pytest.raises(StudyError, match=message):
            read(data, ["id", "text"], file)


def test_a_pointer_to_a_table_is_refused(read) -> None:
    annex = "annex/objects/SHA256E-s12--0.csv\n"
    lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n"
    for pointer in (lfs, f"/{annex}", f"../.git/{annex}"):
        with pytest.raises(StudyError, match="is a pointer of git-LFS or git-annex; fetch"):
            read(pointer, ["id", "text"])


def test_texts_are_what_was_quoted_and_a_name_with_another_separator_keeps_the_comma(read):
    texts = ['a "b" c', 'x\ny, "z"', '"', '""', "", '5 " tube', "a\r\nb", ",", "\n"]
    stream = io.StringIO()
    csv.writer(stream).writerows([["id", "text"], *((str(n), x) for n, x in enumerate(texts))])
    assert read(stream.getvalue(), ["text"])["text"] == texts
    # a quote within a field
    assert read('id,text\n1,a 5" tube\n2,b\n', ["text"])["text"] == ['a 5" tube', "b"]
    assert read("id,a;b;c\n1,x;y\n2,z\n", ["id", "a;b;c"])["a;b;c"] == ["x;y", "z"]


def test_a_text_that_holds_rows_is_warned_of(read, caplog):
    for first, last, warned in ((5, 12, True), (5, 6, False)):
        caplog.clear()
        rows = [f"{n},p{n},clear {n}" for n in range(20)]
        rows[first] = '5,p5,"clear 5'
        rows[last] += '"'
        found = read("\n".join(["id,who,text", *rows]), ["id"])
        assert len(found["id"]) == 20 - (last - first)
        assert ("line 7 of table t.csv" in caplog.text) == warned
        assert "clear" not in caplog.text
    caplog.clear()
    text = "FINDINGS:\nHeart, lungs, bones normal.\nNo edema, no effusion, clear.\nEnd.\nBye."
    assert read(f'id,who,text\n1,2,"{text}"\n', ["text"])["text"] == [text]
    assert not caplog.text


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
        b"sep=;\r\nid;text\r\n007;one, two\r\n8;three\r\n",
        b'\xef\xbb\xbf"sep=;"\nid;text\n007;one, two\n8;three\n',
        "sep=\t\nid\ttext\n007\tone, two\n8\tthree\n".encode("utf-16"),
        b"id|text|\n007|one, two|\n8|three|\n",
        b'id;text\r007;"one, two"\r8;three\r',
        "\ufeff\ufeff id ; text \n007;one, two\n8;three\n".encode(),
    ],
)
def test_every_usual_spelling_of_csv_is_read(read, data: bytes) -> None:
    want = {"id": ["007", "8"], "text": ["one, two", "three"]}
    for name in ("t.csv", "t.csv.gz"):
        assert read(data, ["id", "text"], name) == want


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(
    "text",
    [
        '{"id": "007", "n": 1}\r\n{"id": 8, "n": NaN}\r\n',
        '[{"id": "007", "n": 1},\n{"id": 8}]',
        '{"a": {"id": "007", "n": 1},\n "b": {"id": 8, "n": null}}',
        '{"id": {"0": "007", "1": 8}, "n": {"0": 1, "1": null}}',  # as pandas writes a table
        '{"train": [{"id": "007", "n": 1}],\n"val": [{"id": 8}]}',
        '{"data": [{"id": "007", "n": 1}, {"id": 8}]}',
    ],
)
def test_json_is_read_as_other_programs_write_it(read, text: str, encoding: str) -> None:
    """In either file; of byte order marks: https://github.com/huggingface/datasets/issues/8241."""
    for name in ("t.json", "t.jsonl", "t.ndjson", "t.json.gz"):
        found = read(text.encode(encoding), ["id", "n"], name)
        assert found == {"id": ["007", "8"], "n": ["1", ""]}


@pytest.mark.parametrize(
    ("column", "want"),
    [
        (pa.array([7.0, None, 123456789012.0]), ["7", "", "123456789012"]),
        (pa.array([7.5, float("nan"), float("inf")]), ["7.5", "", ""]),
        (pa.array([2.0**52, 1.0, 2.0]), ["4503599627370496", "1", "2"]),
        (pa.array([7, 8, None]).dictionary_encode(), ["7", "8", ""]),
        (pa.array(["007", "b", None], pa.large_string()), ["007", "b", ""]),
        (pa.array([b"007", b"b", None]), ["007", "b", ""]),
        (pa.array([True, False, None]), ["true", "false", ""]),
    ],
)
def test_columns_of_parquet_are_what_they_mean(tmp_path, column, want):
    pq.write_table(pa.table({"id": column}), tmp_path / "t.parquet")
    assert read_rows(tmp_path / "t.parquet", ["id"])["id"] == want


def test_ids_lose_what_no_eye_sees_and_those_without_all_digits_are_refused() -> None:
    for shown in ("s1", "s 1", "1E5", "007", "Müller"):
        for text in (shown, f" {shown}\t", f"\u00a0{shown}\u3000", f"\ufeff {shown}\u200b"):
            assert clean_id(text) == clean_id(f'="{text}"') == shown
    assert clean_id("Mu\u0308ller") == "Müller"
    for dropped in ("1.23457E+12", "1,2E+05", "1e+22"):  # by a spreadsheet
        with pytest.raises(StudyError, match="scientific notation"):
            clean_id(dropped)


@pytest.mark.parametrize(
    ("names", "others", "words"),
    [
        (["a1", "a2"], ["A1", "A2"], "; 2 of 2 would be found but for case"),
        (["7", "8"], ["007", "9"], "; 1 of 2 would be found but for leading zeros"),
        (["7.0"], ["7"], "; 1 of 1 would be found but for a final .0"),
        (["s 1"], ["s1"], "; 1 of 1 would be found but for blanks"),
        (["s50"], ["50"], "; 1 of 1 would be found but for letters before the number"),
        (["x/a.png"], ["a.png"], "; 1 of 1 would be found but for folders"),
        (["a"], ["a.dcm"], "; 1 of 1 would be found but for the ending of a file's name"),
        (["S07.0"], ["7"], "; 1 of 1 would be found but for case, leading zeros"),
    ],
)
def test_what_would_join_is_named(names: list[str], others: list[str], words: str) -> None:
    assert would_join(names, others).startswith(words)
    assert would_join(["a"], ["b"]) == ""


def test_what_is_set_already_is_not_recommended_and_bytes_are_no_text(tmp_path, read):
    with pytest.raises(StudyError, match="neither UTF-8 nor cp1252; save it as UTF-8") as refused:
        read(b"id;text\n1;\x81\n", ["id"], fallback="cp1252")
    assert "fallback" not in str(refused.value)
    pq.write_table(pa.table({"x": [b"\x89PNG\xff"]}), tmp_path / "t.parquet")
    with pytest.raises(StudyError, match=r"source\.kind huggingface"):
        read_rows(tmp_path / "t.parquet", ["x"])


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("t.csv", "Doe^Jane,other\n1,2\n"),
        ("t.jsonl", '{"Doe^Jane": "1", "other": "2"}\n'),
        ("t.json", '{"Doe^Jane": "1", "other": "2"}'),
    ],
)
def test_columns_are_named_unless_they_may_be_data(read, name: str, lines: str) -> None:
    """Of CSV without a header the first row is data, and JSON may map patients to reports."""
    for wanted in (["id"], ["id", "other"]):
        with pytest.raises(StudyError, match="among its 2, whose names may be data;") as refused:
            read(lines, wanted, name)
        assert "Doe" not in str(refused.value)
    with pytest.raises(StudyError, match=r"column \['id'\], only \['Doe\^Jane', 'other'\]"):
        read(lines, ["id", "other", "Doe^Jane"], name)  # most are there: they are names
