"""Table files of a source: CSV as programs write it, Parquet, Arrow and JSON.

What is no table but a pointer to one, left where git-LFS or git-annex fetched no content, is
refused.
"""

import csv
import gzip
import io
import json
import logging
import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv

from medclip_dcl.core.errors import StudyError

LOGGER = logging.getLogger(__name__)

INVISIBLE = "\ufeff\u200b\u200c\u200d\u200e\u200f\u2060"
"""Marks that no eye sees at the ends of names and ids."""
POINTER_BYTES = 1024
"""No pointer of git-LFS or git-annex is longer."""
_POINTERS = (b"version https://git-lfs.github.com/spec/", b"/annex/objects/", b"../.git/annex/")
_HEAD_BYTES = 4096
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
# Beginning of a file -> what it is, and what to do.
_FORMS = {
    b"PK\x03\x04": "is an Excel workbook or a zip file; save the sheet as CSV UTF-8",
    b"\xd0\xcf\x11\xe0": "is an Excel workbook; save the sheet as CSV UTF-8",
    b"PAR1": "is Parquet; let its name end in .parquet",
    b"ARROW1": "is Arrow; let its name end in .arrow",
    b"\x1f\x8b": "is compressed; let its name end in .gz",
    b"<": "is HTML or XML; export it as CSV UTF-8",
}


def is_pointer(head: bytes) -> bool:
    """Whether a file is a pointer of git-LFS or git-annex, left where content was not fetched.

    Source: git-LFS specification, "The Pointer"; git-annex, "pointer file".
    """
    return head.startswith(_POINTERS)


def read_any(path: Path, fallback: str = "") -> pa.Table:
    """Read a table: `.csv`, `.parquet`, `.arrow`, `.jsonl`, `.json`; text also with `.gz`.

    CSV stays strings, and is UTF-8 or, after a byte order mark, UTF-16; else in the encoding
    `fallback`, where one is given. What separates its fields is detected in the first rows: comma,
    semicolon, tab or bar; or a line `sep=;` above them names it. Names of columns are stripped.

    Raises:
        StudyError: it is missing or malformed, or CSV whose rows differ in length, or whose quotes
            do not end.
    """
    return pa.concat_tables(read_table_parts(path, fallback))


def read_table_parts(path: Path, fallback: str = "") -> Iterator[pa.Table]:
    """Read a table as `read_any`, CSV in parts, the first of them without rows."""
    if not path.is_file():
        raise StudyError(f"table {path} is missing; set source.root and source.table to your data")
    kind = path.with_suffix("").suffix if path.suffix.lower() == ".gz" else path.suffix
    try:
        head = _refuse_other_forms(path, kind.lower())
        if kind.lower() == ".parquet":
            yield pq.read_table(path)
        elif kind.lower() == ".arrow":
            table = _read_arrow(path)
            table.validate(full=True)
            yield table
        elif kind.lower() in {".jsonl", ".json"}:
            yield _read_json(path, "utf-16" if head.startswith(_UTF16) else "utf-8-sig")
        elif head.startswith(_UTF16):
            yield from _read_csv(path, "utf-16")
        else:
            yield from _read_csv(path, "utf-8-sig", fallback)
    except (pa.ArrowException, OSError, EOFError, ValueError, zlib.error) as error:
        raise StudyError(
            f"table {path} cannot be read ({error_words(error)}); write it again"
        ) from error


def error_words(error: BaseException) -> str:
    """Name what is wrong with a file, without the library's own words, which may quote a row."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
        return "it is cut off or damaged"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "its content is not what its name says"


def _read_arrow(path: Path) -> pa.Table:
    # Files, or streams as `datasets` writes them; mapped, without reading them.
    source = pa.memory_map(str(path))
    try:
        return pa.ipc.open_file(source).read_all()
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_stream(source).read_all()


def _open_plain(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def _open_text(path: Path, encoding: str, errors: str = "strict") -> IO[str]:
    return io.TextIOWrapper(_open_plain(path), encoding, errors, newline="")


def _refuse_other_forms(path: Path, kind: str) -> bytes:
    """Return the first bytes of text; StudyError for a pointer, or where it is no text."""
    with path.open("rb") as stream:
        if is_pointer(stream.read(_HEAD_BYTES)):
            raise StudyError(
                f"table {path} is a pointer of git-LFS or git-annex; fetch its content"
            )
    if kind in {".parquet", ".arrow"}:
        return b""
    with _open_plain(path) as stream:
        head = stream.read(_HEAD_BYTES)
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    fault = next((words for magic, words in _FORMS.items() if start.startswith(magic)), "")
    if not start:
        fault = "is empty; name another"
    elif not fault and b"\0" in head and not head.startswith(_UTF16):
        fault = "holds bytes that are not text; give CSV, Parquet or JSON, and text as UTF-8"
    if fault:
        raise StudyError(f"table {path} {fault}")
    return head


_SEPARATORS = (",", ";", "\t", "|")
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?[,;\t|]*[\r\n]*', re.IGNORECASE)
_SAMPLE_ROWS = 50  # that the separator is detected from
_SAMPLE_LETTERS = 1 << 18
_MOST_LETTERS = 32 << 20  # of a field
_PART_ROWS = 10_000
_LIKE_ROWS = 3  # lines within a text from which it is taken for rows
_NO_VALUES = frozenset(arrow_csv.ConvertOptions().null_values)  # NaN, NULL, N/A and the like

_Row = tuple[int, list[str]]
"""Number of its first line, from 1, and its fields."""


# Of the standard library and not Arrow's: it reads what an opening quote swallows line by line, so
# that a fault is named by its line, and takes no type for another: a patient "007" stays "007".
def _read_csv(path: Path, encoding: str, fallback: str = "") -> Iterator[pa.Table]:
    try:
        if fallback and not _is_text(path, encoding):
            encoding = fallback
        separator, skipped = _sniff(path, encoding)
        with _open_text(path, encoding) as text:
            rows = _rows(text, separator, skipped, path)
            line, header = next(rows)
            names = [name.strip().strip(INVISIBLE).strip() for name in header]
            if names[0] and len(names) > 1 and not any(names[1:]):  # a spreadsheet padded a title
                raise StudyError(
                    f"line {line} of table {path} names one column of {len(names)}; delete lines "
                    "above the header, or name every column in it"
                )
            yield _string_table(names, [])
            part: list[list[str]] = []
            for start, row in rows:
                if len(row) != len(names):
                    raise _of_other_length(path, separator, (line, header), (start, row), rows)
                part.append(row)
                if len(part) == _PART_ROWS:
                    yield _string_table(names, part)
                    part = []
            yield _string_table(names, part)
    except UnicodeError as error:
        if encoding == "utf-16":
            raise StudyError(f"table {path} is damaged UTF-16; save it as UTF-8") from error
        remedy = "save it as UTF-8" if fallback else "save it so, or set source.fallback_encoding"
        tried = f"neither UTF-8 nor {fallback}" if fallback else "not UTF-8"
        raise StudyError(f"table {path} is {tried}; {remedy}") from error


def _is_text(path: Path, encoding: str) -> bool:
    with _open_text(path, encoding) as text:
        try:
            while text.read(1 << 20):
                pass
        except UnicodeError:
            return False
    return True


def _string_table(names: Sequence[str], rows: Sequence[list[str]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [[] for _ in names]
    values = (["" if value in _NO_VALUES else value for value in column] for column in columns)
    return pa.Table.from_arrays([pa.array(column, pa.string()) for column in values], [*names])


def _sniff(path: Path, encoding: str) -> tuple[str, int]:
    """Detect by which separator all of the first rows have most fields, else the header.

    A comma in an unquoted text makes rows of different lengths, and so rules out the comma.
    Returned with it: the lines above the header.
    """
    with _open_text(path, encoding, "replace") as stream:
        text = stream.read(_SAMPLE_LETTERS)
    named = _SEPARATOR_LINE.fullmatch(io.StringIO(text, newline="").readline())
    if named and named[1] in _SEPARATORS:
        return named[1], 1

    def fields(separator: str) -> tuple[int, int]:
        rows: list[list[str]] = []
        try:
            reader = filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=separator))
            rows += islice(reader, _SAMPLE_ROWS + 1)
        except csv.Error:  # a quoted field beyond any length: no row is read
            return 0, 0
        if len(rows) > _SAMPLE_ROWS or len(text) == _SAMPLE_LETTERS:
            rows = rows[:-1] or rows  # the last may be cut off
        lengths = [len(row) for row in rows] or [0]
        is_even = len({*lengths}) == 1 and lengths[0] > 1
        return lengths[0] if is_even else 0, lengths[0]

    return max(_SEPARATORS, key=fields), 0  # of equal ones the first


def _rows(text: IO[str], separator: str, skipped: int, path: Path) -> Iterator[_Row]:
    """Read the rows that are not blank.

    Quotes that do not end, or end within a text of several lines, are refused: else all that
    follows an opening quote, other patients' rows, would be one text.
    """
    lines: list[str] = []  # of the row that is read
    is_over = False

    def remembered() -> Iterator[str]:
        nonlocal is_over
        for line in text:
            lines.append(line)
            yield line
        is_over = True

    csv.field_size_limit(max(csv.field_size_limit(), _MOST_LETTERS))
    for _ in range(skipped):
        text.readline()
    reader = csv.reader(remembered(), delimiter=separator)
    start, columns = skipped + 1, 0
    while True:
        where = f"the quotes that begin in line {start} of table {path}"
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise StudyError(
                f"{where} do not end in {_MOST_LETTERS} letters; close them"
            ) from error
        if row is None:
            return
        if len(lines) > 1 or is_over:
            _check_quotes(lines, separator, start, where)
        columns = columns or len(row)
        for field in row if len(lines) > _LIKE_ROWS else ():
            if alike := _like_rows(field, separator, columns):
                LOGGER.warning(
                    "line %d of table %s: one quoted text holds %d lines that look like rows of "
                    "the table; see whether its quotes end too late", start, path.name, alike
                )  # fmt: skip
        if row:
            yield start, row
        start += len(lines)
        lines.clear()


def _check_quotes(lines: Sequence[str], separator: str, start: int, where: str) -> None:
    # The reader of `_rows` is lenient, as a quote within one line does no harm; this one is strict.
    reader = csv.reader(lines, delimiter=separator, strict=True)
    try:
        next(reader)
    except csv.Error as error:
        if reader.line_num == len(lines) and "end of data" in str(error):
            raise StudyError(f"{where} do not end, and hold all rows below; close them") from error
        raise StudyError(
            f"{where} end within line {start + reader.line_num - 1}, before their field does; "
            "write quotes in a text twice"
        ) from error


def _like_rows(text: str, separator: str, columns: int) -> int:
    lines = text.splitlines()[1:]
    alike = [
        line
        for line in lines
        if line.count(separator) == columns - 1 and " " not in line.split(separator, 1)[0]
    ]
    return len(alike) if columns > 1 and 2 * len(alike) > len(lines) >= _LIKE_ROWS else 0


def _of_other_length(
    path: Path, separator: str, header: _Row, other: _Row, rows: Iterator[_Row]
) -> StudyError:
    # A row of another length than the header: is it the header that is not one?
    (line, names), (start, row) = header, other
    below = [len(row), *(len(item) for _, item in islice(rows, _SAMPLE_ROWS))]
    parted = f"separated by {separator!r}"
    if start == line + 1 and len(below) > 1 and len(names) < min(below) == max(below):
        last = "" if row[-1].strip() else ", the last of them blank"
        return StudyError(
            f"line {line} of table {path} has {len(names)} fields, and every row below {len(row)}"
            f"{last}, {parted}; delete lines above the header, or name every column in it"
        )
    return StudyError(
        f"line {start} of table {path} has {len(row)} fields, and the header in line {line} "
        f"{len(names)}, {parted}; quote texts that hold it, write quotes in them twice, and delete "
        "lines above the header and below the table"
    )


_DEEPEST = 200  # objects and lists within each other: Arrow's cost grows with the square of it


def _read_json(path: Path, encoding: str) -> pa.Table:
    with _open_text(path, encoding) as stream:
        text = stream.read()
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    if all(line.lstrip().startswith("{") for _, line in lines[:2]) and len(lines) > 1:
        tree: Any = [_parsed(line, number, path) for number, line in lines]
    else:
        tree = _parsed(text, 1, path)
    if isinstance(tree, dict):  # an object of objects; or the only line
        is_outer = all(isinstance(value, dict) for value in tree.values())
        tree = list(tree.values()) if is_outer else [tree]
    if not isinstance(tree, list) or not tree or not all(isinstance(row, dict) for row in tree):
        raise StudyError(
            f"table {path} lists no objects; give one object a line, a list of objects, or an "
            "object of objects"
        )
    names = dict.fromkeys(name for row in tree for name in row)
    return pa.table({name: _json_column([row.get(name) for row in tree], path) for name in names})


def _parsed(text: str, line: int, path: Path) -> Any:
    """Parse JSON, NaN as null; a fault is named by its line, counted from `line` on, and column."""
    try:
        tree = json.loads(text, parse_constant=lambda _: None, object_pairs_hook=_unique)
        is_deep = _is_deep(tree, _DEEPEST)
    except RecursionError:
        is_deep = True
    except ValueError as error:
        where, what = f"line {line}", str(error)
        if isinstance(error, json.JSONDecodeError):
            where, what = f"line {line + error.lineno - 1}, column {error.colno}", error.msg
        raise StudyError(
            f"{where} of table {path} is not JSON ({what}); give one object a line, a list of "
            "objects, or an object of objects"
        ) from error
    if is_deep:
        raise StudyError(
            f"table {path} nests objects or lists more than {_DEEPEST} deep; give plainer rows"
        )
    return tree


def _unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(unique := dict(items)) < len(items):
        raise ValueError("an object has one name twice")
    return unique


def _is_deep(tree: Any, left: int) -> bool:
    held = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return not left or any(_is_deep(x, left - 1) for x in held if isinstance(x, dict | list))


def _json_column(values: list[Any], path: Path) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError) as error:
        if any(isinstance(value, dict | list) for value in values):
            raise StudyError(
                f"table {path} mixes lists, objects and plain values in one place; give one object "
                "a line, of the same form"
            ) from error
        words = (v if isinstance(v, str) or v is None else json.dumps(v) for v in values)
        return pa.array(words, pa.string())  # numbers and texts
