"""CSV in its usual spellings: how it is separated and encoded, and why one cannot be read."""

import csv
import gzip
import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Literal

import pyarrow as pa
from pyarrow import csv as arrow_csv

from medclip_dcl.errors import StudyError

Separator = Literal["", ",", ";", "\t", "|"]
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


def read_csv(path: Path, fallback: str = "", separator: Separator = "") -> pa.Table:
    """Read a CSV file, plain or `.gz`, with all values as strings.

    UTF-8 or, after a byte order mark, UTF-16; else in the encoding `fallback`, where one is given.
    Without a `separator` it is detected in the first rows: comma, semicolon, tab or bar.

    Raises:
        StudyError: it is not in such an encoding, or its rows differ in length.
    """
    with open_plain(path) as stream:
        is_utf16 = stream.read(2) in UTF16
    failure: Exception | None = None
    for encoding in ["utf-16"] if is_utf16 else ["utf8", *([fallback] if fallback else [])]:
        chosen = separator or sniff_separator(path, encoding)
        try:
            return _read(path, encoding, chosen)
        except (pa.ArrowException, OSError, ValueError) as error:
            failure = error
            if _is_text(path, encoding):
                raise StudyError(_fault(path, encoding, chosen, error, given=separator)) from error
    if is_utf16:
        raise StudyError(f"table {path} is damaged UTF-16; save it as UTF-8") from failure
    remedy = "save it as UTF-8" if fallback else "save it so, or set source.fallback_encoding"
    tried = f"neither UTF-8 nor {fallback}" if fallback else "not UTF-8"
    raise StudyError(f"table {path} is {tried}; {remedy}") from failure


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


def _read(path: Path, encoding: str, separator: str) -> pa.Table:
    read = arrow_csv.ReadOptions(block_size=BLOCK, encoding=encoding)
    parse = arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    with arrow_csv.open_csv(path, read, parse) as reader:
        names: list[str] = reader.schema.names
    # Arrow guesses types otherwise: a patient "007" would become 7.
    types = arrow_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True
    )
    return arrow_csv.read_csv(path, read, parse, types)


def _is_text(path: Path, encoding: str) -> bool:
    try:
        with open_plain(path) as stream, io.TextIOWrapper(stream, encoding) as text:
            while text.read(1 << 20):
                pass
    except (OSError, EOFError, ValueError):
        return False
    return True


def _fault(path: Path, encoding: str, separator: str, error: Exception, *, given: str) -> str:
    # Why a file whose text can be decoded is refused; Arrow's own words quote the row.
    with open_plain(path) as stream, io.TextIOWrapper(stream, encoding, newline="") as text:
        rows = _rows(text, separator)
        header = next(rows, [])
        for number, row in enumerate(rows):
            if len(row) != len(header):
                other = "" if given else ", or set source.separator"
                return (
                    f"row {number} of table {path} has {len(row)} fields, and the header "
                    f"{len(header)}, separated by {separator!r}; quote texts that hold it{other}"
                )
    return f"table {path} cannot be read as CSV ({type(error).__name__}); write it again"
