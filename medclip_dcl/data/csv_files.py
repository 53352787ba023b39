"""CSV as programs write it: its separator, its encoding and its quotes; all values are strings."""

import csv
import gzip
import io
import logging
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

import pyarrow as pa
from pyarrow import csv as arrow_csv

from medclip_dcl.core.errors import StudyError

LOGGER = logging.getLogger(__name__)

INVISIBLE = "\ufeff\u200b\u200c\u200d\u200e\u200f\u2060"
"""Marks that no eye sees at the ends of names and ids."""
BLOCK = 32 << 20
"""Bytes that Arrow parses at a time; it refuses a row that is longer."""
UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""Byte order marks with which UTF-16 begins."""
SEPARATORS = (",", ";", "\t", "|")
_SAMPLE_BYTES = 1 << 18  # that the separator is detected from
_SAMPLE_ROWS = 50
_SEPARATOR_LINE = re.compile(r'\ufeff?"?sep=(.)"?[,;\t|]*\r?$', re.IGNORECASE)


class _Dialect(NamedTuple):
    encoding: str
    separator: str
    skipped: int  # lines above the header


def read_csv(path: Path, fallback: str = "") -> Iterator[pa.Table]:
    """Read a CSV file, plain or `.gz`, in parts, the first without rows; all values are strings.

    UTF-8 or, after a byte order mark, UTF-16; else in the encoding `fallback`, where one is given.
    What separates the fields is detected in the first rows: comma, semicolon, tab or bar; or a line
    `sep=;` above them names it. Names of columns are stripped.

    Raises:
        StudyError: it is not in such an encoding, its rows differ in length, or quotes do not end.
    """
    with open_plain(path) as stream:
        is_utf16 = stream.read(2) in UTF16
    encoding = "utf-16" if is_utf16 else "utf8"
    if fallback and not is_utf16 and not _is_text(path, encoding):
        encoding = fallback
    dialect = _Dialect(encoding, *_sniff(path, encoding))
    try:
        parts = _parse_csv(path, dialect)
        header = next(parts)
        title, *others = header.column_names
        if title and others and not any(others):  # a title that a spreadsheet padded
            raise StudyError(
                f"line {dialect.skipped + 1} of table {path} names one column of "
                f"{header.num_columns}; delete lines above the header, or name every column in it"
            )
        _check_quotes(path, dialect, header.num_columns)
        yield header
        yield from parts
    except (pa.ArrowException, OSError, ValueError) as error:
        if _is_text(path, encoding):
            _check_quotes(path, dialect, 0)
            raise StudyError(_csv_fault(path, dialect)) from error
        if is_utf16:
            raise StudyError(f"table {path} is damaged UTF-16; save it as UTF-8") from error
        remedy = "save it as UTF-8" if fallback else "save it so, or set source.fallback_encoding"
        tried = f"neither UTF-8 nor {fallback}" if fallback else "not UTF-8"
        raise StudyError(f"table {path} is {tried}; {remedy}") from error


def sniff_separator(path: Path, encoding: str) -> str:
    """Detect by which separator all of the first rows have most fields, else the header.

    A comma in an unquoted text makes rows of different lengths, and so rules out the comma.
    """
    return _sniff(path, encoding)[0]


def _sniff(path: Path, encoding: str) -> tuple[str, int]:
    with open_plain(path) as stream:
        data = stream.read(_SAMPLE_BYTES)
    text = data.decode(encoding, "replace").removeprefix("\ufeff")
    is_whole = len(data) < _SAMPLE_BYTES
    named = _SEPARATOR_LINE.match(text.split("\n", 1)[0].split("\r", 1)[0])
    if named and named[1] in SEPARATORS:
        return named[1], 1

    def fields(separator: str) -> tuple[int, int]:
        rows = list(islice(_rows(io.StringIO(text, newline=""), separator), _SAMPLE_ROWS + 1))
        if len(rows) > _SAMPLE_ROWS or not is_whole:
            rows = rows[:-1] or rows  # the last may be cut off
        of_header = len(rows[0][1]) if rows else 0
        lengths = {len(row) for _, row in rows}
        of_all = of_header if lengths == {of_header} and of_header > 1 else 0
        return of_all, of_header

    return max(SEPARATORS, key=fields), 0  # of equal ones the first


def _rows(text: IO[str], separator: str) -> Iterator[tuple[int, list[str]]]:
    # Rows that are not blank, with the number of their first line, from 1.
    reader = csv.reader(text, delimiter=separator)
    start = 1
    try:
        for row in reader:
            if row:
                yield start, row
            start = reader.line_num + 1
    except csv.Error:  # a quoted field beyond any length: as far as this is enough
        return


def _parse_csv(path: Path, dialect: _Dialect) -> Iterator[pa.Table]:
    read = arrow_csv.ReadOptions(
        block_size=BLOCK, encoding=dialect.encoding, skip_rows=dialect.skipped
    )
    parse = arrow_csv.ParseOptions(delimiter=dialect.separator, newlines_in_values=True)
    with arrow_csv.open_csv(path, read, parse) as reader:
        names: list[str] = reader.schema.names
    # Arrow guesses types otherwise: a patient "007" would become 7.
    types = arrow_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True
    )
    stripped = [name.strip().strip(INVISIBLE).strip() for name in names]
    with arrow_csv.open_csv(path, read, parse, types) as reader:
        yield reader.schema.empty_table().rename_columns(stripped)
        for batch in reader:
            yield pa.Table.from_batches([batch]).rename_columns(stripped)


_PIECE = BLOCK // 4  # bytes of a file at a time
_LIKE_ROWS = 3  # lines within a text from which it is taken for rows


def _check_quotes(path: Path, dialect: _Dialect, columns: int) -> None:
    """Refuse quotes that do not end, or end within a text of several lines.

    Arrow takes all that follows an opening quote for one text. A text that holds lines with as many
    separators as a row is warned of.
    """
    separator = re.escape(dialect.separator.encode())
    quoted = re.compile(rb'(?<=[\n\r%s])"([^"]*(?:""[^"]*)*)("?)' % separator)
    ends = (b"\n", b"\r", dialect.separator.encode(), b"")
    with open_plain(path) as stream:
        newline = b"\n" if b"\n" in stream.read(_SAMPLE_BYTES) else b"\r"
    rest, line, chunks = newline, 0, _text_bytes(path, dialect.encoding)  # line of what comes next
    while True:
        chunk = next(chunks, b"")
        data = rest + chunk
        done = 0  # up to where lines are counted
        keep = len(data) - 1  # a quote that comes next may begin a field
        for match in quoted.finditer(data):
            start = line + data[done : match.start()].count(newline)
            if chunk and match.end() == len(data) and len(data) - match.start() < BLOCK:
                keep = match.start() - 1  # its end is in the next chunk
                break
            if not match[2]:
                raise StudyError(
                    f"the quotes that begin in line {start} of table {path} do not end, and hold "
                    "all rows below; close them"
                )
            inner = match[1].count(newline)
            if inner and data[match.end() : match.end() + 1] not in ends:
                raise StudyError(
                    f"the quotes that begin in line {start} of table {path} end within line "
                    f"{start + inner}, before their field does; write quotes in a text twice"
                )
            if inner >= _LIKE_ROWS and (rows := _like_rows(match[1], dialect.separator, columns)):
                LOGGER.warning(
                    "line %d of table %s: one quoted text holds %d lines that look like rows of "
                    "the table; see whether its quotes end too late", start, path.name, rows
                )  # fmt: skip
            line, done = start + inner, match.end()
        line += data[done:keep].count(newline) if keep > done else 0
        if not chunk:
            return
        rest = data[keep:]


def _like_rows(text: bytes, separator: str, columns: int) -> int:
    lines = text.splitlines()[1:]
    alike = [
        line
        for line in lines
        if line.count(separator.encode()) == columns - 1
        and b" " not in line.split(separator.encode(), 1)[0]
    ]
    return len(alike) if columns > 1 and 2 * len(alike) > len(lines) >= _LIKE_ROWS else 0


def _text_bytes(path: Path, encoding: str) -> Iterator[bytes]:
    # Pieces of a file in an encoding in which quotes, separators and ends of lines are one byte.
    with open_plain(path) as stream:
        if encoding == "utf-16":
            with io.TextIOWrapper(stream, encoding, newline="") as text:
                while piece := text.read(_PIECE):
                    yield piece.encode("utf-8", "surrogatepass")
        else:
            if stream.read(3) != b"\xef\xbb\xbf":
                stream.seek(0)
            while data := stream.read(_PIECE):
                yield data


def _is_text(path: Path, encoding: str) -> bool:
    try:
        with open_plain(path) as stream, io.TextIOWrapper(stream, encoding) as text:
            while text.read(1 << 20):
                pass
    except (OSError, EOFError, ValueError):
        return False
    return True


def _csv_fault(path: Path, dialect: _Dialect) -> str:
    # Why a file whose text can be decoded is refused; Arrow's own words quote the row.
    with open_plain(path) as stream, io.TextIOWrapper(stream, dialect.encoding, newline="") as text:
        for _ in range(dialect.skipped):
            text.readline()
        rows = _rows(text, dialect.separator)
        first, header = next(rows, (1, []))
        for start, row in rows:
            if len(row) == len(header):
                continue
            line, at = start + dialect.skipped, first + dialect.skipped
            below = [len(row), *(len(row) for _, row in islice(rows, _SAMPLE_ROWS))]
            is_above = start == first + 1 and len(below) > 1 and len(set(below)) == 1
            if is_above and len(header) < len(row):
                last = "" if row[-1].strip() else ", the last of them blank,"
                return (
                    f"line {at} of table {path} has {len(header)} fields, and every row below "
                    f"{len(row)}{last} separated by {dialect.separator!r}; delete lines above the "
                    "header, or name every column in it"
                )
            return (
                f"line {line} of table {path} has {len(row)} fields, and the header in line {at} "
                f"{len(header)}, separated by {dialect.separator!r}; quote texts that hold it, "
                "write quotes in them twice, and delete lines above the header and below the table"
            )
    return f"table {path} cannot be read as CSV; write it again"


def open_plain(path: Path) -> IO[bytes]:
    """Open a file, or what a file `.gz` holds, to be read."""
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]
