"""Table files of a source: CSV in its usual spellings, Parquet and JSON, columns as strings.

What is no table but a pointer to one, left where git-LFS or git-annex fetched no content, is
refused.
"""

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json

from medclip_dcl.data.source_settings import FIELD
from medclip_dcl.errors import StudyError

_POINTERS = (b"version https://git-lfs.github.com/spec/", b"/annex/objects/", b"../.git/annex/")
_POINTER_HEAD = 200
POINTER_BYTES = 1024
"""No pointer of git-LFS or git-annex is longer."""


def is_pointer(head: bytes) -> bool:
    """Whether a file is a pointer of git-LFS or git-annex, left where content was not fetched.

    Source: git-LFS specification, "The Pointer"; git-annex, "pointer file".
    """
    return head.startswith(_POINTERS)


def read_rows(path: Path, columns: Sequence[str], fallback: str = "") -> dict[str, list[str]]:
    """Read columns of a table as strings, empty where a value is null; as `read_any`.

    Raises:
        StudyError: the table is missing, malformed, not UTF-8, or lacks a column.
    """
    return take_rows(read_any(path, fallback), path.name, columns)


def take_rows(table: pa.Table, file: str, columns: Sequence[str]) -> dict[str, list[str]]:
    """Take columns of a table that was read from a file, as `read_rows`."""
    require_columns(file, columns, table.column_names)
    return {name: strings(table.column(name), file, name) for name in dict.fromkeys(columns)}


def fill_pattern(table: pa.Table, file: str, pattern: str) -> list[str]:
    """Give the text of each row by a pattern such as `{a}-{b}`, or by the name of a column.

    Raises:
        StudyError: the table lacks a column.
    """
    if not FIELD.search(pattern):
        return take_rows(table, file, [pattern])[pattern]
    columns = take_rows(table, file, FIELD.findall(pattern))

    def filled(row: int) -> str:
        return FIELD.sub(lambda match: columns[match[1]][row].strip(), pattern)

    return [filled(row) for row in range(table.num_rows)]


def require_columns(file: str, wanted: Sequence[str], there: Sequence[str]) -> None:
    """Refuse a table that lacks a column, or has it twice; StudyError."""
    if missing := [name for name in dict.fromkeys(wanted) if name not in there]:
        raise no_column(file, missing, there, wanted)
    if twice := [name for name in dict.fromkeys(wanted) if list(there).count(name) > 1]:
        raise StudyError(f"table {file} has column {twice} twice; rename one of them")


def no_column(
    file: str, missing: Sequence[str], there: Sequence[str], wanted: Sequence[str] = ()
) -> StudyError:
    """Say that a table lacks columns of those that are wanted, and which it has."""
    return StudyError(
        f"table {file} has no column {list(missing)}{only_columns(file, there, wanted)}; "
        "name its columns in source.columns, source.box_columns or source.label_id"
    )


def only_columns(file: str, there: Sequence[str], wanted: Sequence[str] = ()) -> str:
    """Name the columns that a table has, where these are names and not data.

    The first row of a CSV file may be a patient's, and the keys of a JSON file patients: without
    most of the columns that are `wanted` they are counted.
    """
    if not there:
        return ""
    are_names = 2 * len(set(wanted) & set(there)) > len(set(wanted))
    if file.lower().endswith((".parquet", ".arrow")) or are_names:
        return f", only {list(there[:40])}"
    return f" among its {len(there)}, whose names may be data"


def read_any(path: Path, fallback: str = "") -> pa.Table:
    """Read a table, `.csv`, `.parquet`, `.jsonl` or `.json`, or text with `.gz`; CSV stays strings.

    `fallback`: that of `read_csv`.

    Raises:
        StudyError: it is missing or malformed, or CSV that `read_csv` refuses.
    """
    return pa.concat_tables(read_table_parts(path, fallback))


def read_table_parts(path: Path, fallback: str = "") -> Iterator[pa.Table]:
    """Read a table as `read_any`, CSV in parts that take no more memory than a row allows."""
    if not path.is_file():
        raise StudyError(f"table {path} is missing; set source.root and source.table to your data")
    with path.open("rb") as stream:
        if is_pointer(stream.read(_POINTER_HEAD)):
            raise StudyError(
                f"table {path} is a pointer of git-LFS or git-annex; fetch its content"
            )
    kind = path.with_suffix("").suffix if path.suffix.lower() == ".gz" else path.suffix
    try:
        if kind.lower() == ".parquet":
            yield pq.read_table(path)
            return
        refuse_other_forms(path)
        if kind.lower() in {".jsonl", ".json"}:
            yield _read_json(path, is_lines=kind.lower() == ".jsonl")
        else:
            yield from read_csv(path, fallback)
    except (pa.ArrowException, OSError, EOFError, ValueError, zlib.error) as error:
        words = type(error).__name__
        remedy = "write it again"
        if "json" in kind.lower():
            remedy = "give one object a line, a list of objects, or an object of objects"
        raise StudyError(f"table {path} cannot be read ({words}); {remedy}") from error


def _read_json(path: Path, *, is_lines: bool) -> pa.Table:
    _refuse_depth(path)
    objects = None if is_lines else _objects(path)
    if objects is not None:
        if not objects or not all(isinstance(item, dict) for item in objects):
            raise StudyError(f"table {path} lists no objects; give an object for each row")
        return pa.Table.from_struct_array(pa.array(objects))
    options = arrow_json.ReadOptions(block_size=BLOCK)
    table = arrow_json.read_json(path, options)
    # Arrow takes the text 2026-03-01 for a time, and would write it in another way.
    times = [item.name for item in table.schema if pa.types.is_timestamp(item.type)]
    if times:
        texts = arrow_json.ParseOptions(pa.schema([(name, pa.string()) for name in times]))
        table = arrow_json.read_json(path, options, texts)
    return table


_DEEPEST = 200  # objects and lists within each other; Arrow's parser crashes on 100,000
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


_STEPS = np.zeros(256, np.int8)  # byte -> by how much it goes deeper
_STEPS[[*b"{["]], _STEPS[[*b"}]"]] = 1, -1


def _refuse_depth(path: Path) -> None:
    depth = 0
    with open_plain(path) as stream:
        for line in stream:
            opens, closes = (line.count(a) + line.count(b) for a, b in ((b"{", b"["), (b"}", b"]")))
            if opens == closes and depth + opens <= _DEEPEST:
                continue
            bare = np.frombuffer(_STRING.sub(b"", line), np.uint8)  # without brackets of texts
            depths = depth + np.cumsum(_STEPS[bare], dtype=np.int64)
            if len(depths) and depths.max() > _DEEPEST:
                raise StudyError(
                    f"table {path} nests objects or lists more than {_DEEPEST} deep; give plainer "
                    "rows"
                )
            depth = int(depths[-1]) if len(depths) else depth


def _objects(path: Path) -> list[Any] | None:
    """Read a JSON file of a list of objects, or of an object of objects; None: of JSON lines."""
    with io.TextIOWrapper(open_plain(path), encoding="utf-8") as file:
        try:
            tree = json.loads(file.readline())
            if any(line.strip() for line in file):
                return None
        except json.JSONDecodeError:  # the first line does not end it
            file.seek(0)
            tree = json.load(file)
    if isinstance(tree, dict) and all(isinstance(value, dict) for value in tree.values()):
        return list(tree.values())
    return tree if isinstance(tree, list) else None


def strings(column: Any, table: str, name: str) -> list[str]:
    """Give a column of a table as strings, empty where null; StudyError where it is nested."""
    values: list[str] = string_column(column, table, name).to_pylist()
    return values


def string_column(column: Any, table: str, name: str) -> pa.ChunkedArray:
    """Give a column as `strings`, in the form that Arrow keeps it in."""
    if pa.types.is_nested(column.type):
        raise StudyError(f"column {name!r} of {table} holds lists or objects; map a plain column")
    return pc.fill_null(pc.cast(column, pa.string()), "")


SEPARATORS = (",", ";", "\t", "|")
BLOCK = 32 << 20
"""Bytes that Arrow parses at a time; it refuses a row that is longer."""
UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""Byte order marks with which UTF-16 begins."""

_SAMPLE_BYTES = 1 << 18  # that the separator is detected from
_SAMPLE_ROWS = 50
_HEAD_BYTES = 4096
# Beginning of a file -> what it is, and what to do.
_FORMS = {
    b"PK\x03\x04": "is an Excel workbook or a zip file; save the sheet as CSV UTF-8",
    b"\xd0\xcf\x11\xe0": "is an Excel workbook; save the sheet as CSV UTF-8",
    b"PAR1": "is Parquet; let its name end in .parquet",
    b"\x1f\x8b": "is compressed; let its name end in .gz",
}


def open_plain(path: Path) -> IO[bytes]:
    """Open a file, or what a file `.gz` holds, to be read."""
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def refuse_other_forms(path: Path) -> None:
    """Refuse a file that holds no text, and name what it is; StudyError."""
    with open_plain(path) as stream:
        head = stream.read(_HEAD_BYTES)
    found = next((words for magic, words in _FORMS.items() if head.startswith(magic)), "")
    if not head.strip():
        found = "is empty; name another"
    elif not found and b"\0" in head and not head.startswith(UTF16):
        found = "holds bytes that are not text; give CSV, Parquet or JSON"
    if found:
        raise StudyError(f"table {path} {found}")


def read_csv(path: Path, fallback: str = "") -> Iterator[pa.Table]:
    """Read a CSV file, plain or `.gz`, in parts, the first without rows; all values are strings.

    UTF-8 or, after a byte order mark, UTF-16; else in the encoding `fallback`, where one is given.
    What separates the fields is detected in the first rows: comma, semicolon, tab or bar.

    Raises:
        StudyError: it is not in such an encoding, or its rows differ in length.
    """
    with open_plain(path) as stream:
        is_utf16 = stream.read(2) in UTF16
    encoding = "utf-16" if is_utf16 else "utf8"
    if fallback and not is_utf16 and not _is_text(path, encoding):
        encoding = fallback
    separator = sniff_separator(path, encoding)
    try:
        yield from _parse_csv(path, encoding, separator)
    except (pa.ArrowException, OSError, ValueError) as error:
        if _is_text(path, encoding):
            raise StudyError(_csv_fault(path, encoding, separator, error)) from error
        if is_utf16:
            raise StudyError(f"table {path} is damaged UTF-16; save it as UTF-8") from error
        remedy = "save it as UTF-8" if fallback else "save it so, or set source.fallback_encoding"
        tried = f"neither UTF-8 nor {fallback}" if fallback else "not UTF-8"
        raise StudyError(f"table {path} is {tried}; {remedy}") from error


def sniff_separator(path: Path, encoding: str) -> str:
    """Tell by which separator all of the first rows have most fields, else the header.

    A comma in an unquoted text makes rows of different lengths, and so rules out the comma.
    """
    with open_plain(path) as stream:
        data = stream.read(_SAMPLE_BYTES)
    text = data.decode(encoding, "replace").removeprefix("\ufeff")
    is_whole = len(data) < _SAMPLE_BYTES

    def fields(separator: str) -> tuple[int, int]:
        rows = list(islice(_rows(io.StringIO(text, newline=""), separator), _SAMPLE_ROWS + 1))
        if len(rows) > _SAMPLE_ROWS or not is_whole:
            rows = rows[:-1] or rows  # the last may be cut off
        of_header = len(rows[0]) if rows else 0
        of_all = of_header if {len(row) for row in rows} == {of_header} and of_header > 1 else 0
        return of_all, of_header

    return max(SEPARATORS, key=fields)  # of equal ones the first


def _rows(text: IO[str], separator: str) -> Iterator[list[str]]:
    try:
        yield from (row for row in csv.reader(text, delimiter=separator) if row)
    except csv.Error:  # a quoted field beyond any length: as far as this is enough
        return


def _parse_csv(path: Path, encoding: str, separator: str) -> Iterator[pa.Table]:
    read = arrow_csv.ReadOptions(block_size=BLOCK, encoding=encoding)
    parse = arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    with arrow_csv.open_csv(path, read, parse) as reader:
        names: list[str] = reader.schema.names
    # Arrow guesses types otherwise: a patient "007" would become 7.
    types = arrow_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True
    )
    with arrow_csv.open_csv(path, read, parse, types) as reader:
        yield reader.schema.empty_table()
        for batch in reader:
            yield pa.Table.from_batches([batch])


def _is_text(path: Path, encoding: str) -> bool:
    try:
        with open_plain(path) as stream, io.TextIOWrapper(stream, encoding) as text:
            while text.read(1 << 20):
                pass
    except (OSError, EOFError, ValueError):
        return False
    return True


def _csv_fault(path: Path, encoding: str, separator: str, error: Exception) -> str:
    # Why a file whose text can be decoded is refused; Arrow's own words quote the row.
    with open_plain(path) as stream, io.TextIOWrapper(stream, encoding, newline="") as text:
        rows = _rows(text, separator)
        header = next(rows, [])
        for number, row in enumerate(rows):
            if len(row) != len(header):
                return (
                    f"row {number} of table {path} has {len(row)} fields, and the header "
                    f"{len(header)}, separated by {separator!r}; quote texts that hold it"
                )
    return f"table {path} cannot be read as CSV ({type(error).__name__}); write it again"
