"""Tables of a source: CSV as programs write it, Parquet and JSON, and their columns.

Columns are read as strings, nested ones by dotted name, and ClassLabels of `datasets` as their
names. What is no table but a pointer to one, left where git-LFS or git-annex fetched no content, is
refused.
"""

import csv
import gzip
import io
import json
import logging
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv

from medclip_dcl.core.errors import StudyError

LOGGER = logging.getLogger(__name__)

INVISIBLE = "\ufeff\u200b\u200c\u200d\u200e\u200f\u2060"
"""Marks that no eye sees at the ends of names and ids."""
POINTER_BYTES = 1024  # no pointer of git-LFS or git-annex is longer
_POINTERS = (b"version https://git-lfs.github.com/spec/", b"/annex/objects/", b"../.git/annex/")
_HEAD_BYTES = 4096
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
# Beginning of a file -> what it is, and what to do.
_FORMS = {
    b"PK\x03\x04": "is an Excel workbook or a zip file; save the sheet as CSV UTF-8",
    b"\xd0\xcf\x11\xe0": "is an Excel workbook; save the sheet as CSV UTF-8",
    b"PAR1": "is Parquet; let its name end in .parquet",
    b"ARROW1": "is Arrow; write it as Parquet",
    b"\x1f\x8b": "is compressed; let its name end in .gz",
    b"<": "is HTML or XML; export it as CSV UTF-8",
}


def is_pointer(head: bytes) -> bool:
    """Whether a file is a pointer of git-LFS or git-annex, left where content was not fetched.

    Source: git-LFS specification, "The Pointer"; git-annex, "pointer file".
    """
    return head.startswith(_POINTERS)


def read_any(path: Path, fallback: str = "") -> pa.Table:
    """Read a table: `.csv`, `.parquet`, `.jsonl`, `.json`; text also with `.gz`.

    CSV stays strings, and is UTF-8 or, after a byte order mark, UTF-16; else in the encoding
    `fallback`, where one is given. What separates its fields is detected in the first rows: comma,
    semicolon, tab or bar; or a line `sep=;` above them names it. Names of columns are stripped.

    Raises:
        StudyError: it is missing or malformed, or CSV whose rows differ in length, or whose quotes
            do not end.
    """
    return pa.concat_tables(_read_parts(path, fallback))


def _read_parts(path: Path, fallback: str, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
    """Read a table as `read_any`, CSV and Parquet in parts, the first of them without rows.

    Of Parquet no more is read than what holds the `columns`, where any are named.
    """
    if not path.is_file():
        raise StudyError(f"table {path} is missing; set source.root and source.table to your data")
    kind = path.with_suffix("").suffix if path.suffix.lower() == ".gz" else path.suffix
    try:
        head = _refuse_other_forms(path, kind.lower())
        if kind.lower() == ".parquet":
            # Pre-buffering would hold whole row groups, which may be a file.
            with pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
                schema = file.schema_arrow
                located = _locate(path.name, schema.names, columns).values()
                heads = [head for head, _ in located] or None
                yield schema.empty_table()
                for batch in file.iter_batches(_PART_ROWS, columns=heads, use_threads=False):
                    yield pa.Table.from_batches([batch])
        elif kind.lower() in {".jsonl", ".ndjson", ".json"}:
            yield _read_json(path, "utf-16" if head.startswith(_UTF16) else "utf-8-sig")
        elif head.startswith(_UTF16):
            yield from _read_csv(path, "utf-16")
        else:
            yield from _read_csv(path, "utf-8-sig", fallback)
    except (pa.ArrowException, OSError, EOFError, ValueError, zlib.error) as error:
        raise StudyError(
            f"table {path} cannot be read ({_error_words(error)}); write it again"
        ) from error


def _error_words(error: BaseException) -> str:
    """Name what is wrong with a file, without the library's own words, which may quote a row."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
        return "it is cut off or damaged"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "its content is not what its name says"


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
    if kind == ".parquet":
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
# NaN, NULL, N/A and the like; and what pandas makes of missing ids as texts.
_NO_VALUES = {*arrow_csv.ConvertOptions().null_values, "None", "<NA>"}

_Row = tuple[int, list[str]]  # number of its first line, from 1, and its fields


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
    with _open_text(path, encoding) as text, suppress(UnicodeError):
        while text.read(1 << 20):
            pass
        return True
    return False


def _string_table(names: Sequence[str], rows: Sequence[list[str]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [[] for _ in names]
    values = (["" if value in _NO_VALUES else value for value in column] for column in columns)
    return pa.Table.from_arrays([pa.array(column, pa.string()) for column in values], [*names])


def _sniff(path: Path, encoding: str) -> tuple[str, int]:
    """Detect the separator by which the first rows are even, else the header has most fields.

    Returned with it: the lines above the header.
    """
    with _open_text(path, encoding, "replace") as stream:
        text = stream.read(_SAMPLE_LETTERS)
    named = _SEPARATOR_LINE.fullmatch(io.StringIO(text, newline="").readline())
    if named and named[1] in _SEPARATORS:
        return named[1], 1

    def fields(separator: str) -> tuple[bool, int]:
        try:
            reader = filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=separator))
            lengths = [len(row) for row in islice(reader, _SAMPLE_ROWS + 1)] or [0]
        except csv.Error:  # a quoted field beyond any length: no row is read
            return False, 0
        if len(lengths) > _SAMPLE_ROWS or len(text) == _SAMPLE_LETTERS:
            lengths = lengths[:-1] or lengths  # the last row may be cut off
        return len({*lengths}) == 1 and lengths[0] > 1, lengths[0]

    # Even rows go before many fields: texts hold more commas than a table has columns.
    return max(_SEPARATORS, key=fields), 0  # of equal ones the first


def _rows(text: IO[str], separator: str, skipped: int, path: Path) -> Iterator[_Row]:
    """Read the rows that are not blank; StudyError where quotes do not end, or end within a text.

    Else all that follows an opening quote, other patients' rows, would be one text.
    """
    lines: list[str] = []  # of the row that is read
    is_over = False

    def remembered() -> Iterator[str]:
        nonlocal is_over
        for line in text:
            lines.append(line)
            yield line
        is_over = True

    # The library's own limit is 128 kB; without any, a whole file could be one text.
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
    alike = sum(
        line.count(separator) == columns - 1 and " " not in line.split(separator, 1)[0]
        for line in lines
    )
    return alike if columns > 1 and 2 * alike > len(lines) >= _LIKE_ROWS else 0


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
    # An object a line; a single line, or one that opens a list, is a document.
    if all(line.lstrip().startswith("{") for _, line in lines[:2]) and len(lines) > 1:
        tree: Any = [_parsed(line, number, path) for number, line in lines]
    else:
        tree = _parsed(text, 1, path)
    if isinstance(tree, dict):
        tree = _rows_within(tree)
    if not isinstance(tree, list) or not tree or not all(isinstance(row, dict) for row in tree):
        raise StudyError(
            f"table {path} lists no objects; give one object a line, a list of objects, or an "
            "object of objects"
        )
    # In order of first use; objects may lack some.
    names = dict.fromkeys(name for row in tree for name in row)
    return pa.table({name: _json_column([row.get(name) for row in tree], path) for name in names})


_SPLITS = re.compile(r"train(ing)?|val(id|idation|idate)?|dev|test", re.IGNORECASE)


def _rows_within(tree: dict[str, Any]) -> list[Any]:
    # An object of rows; of columns, as pandas writes; of lists of rows; or the only row.
    held = list(tree.values())
    if all(isinstance(value, dict) for value in held):
        if held and all([*value] == [str(n) for n in range(len(held[0]))] for value in held):
            cells = zip(*(value.values() for value in held), strict=True)
            return [dict(zip(tree, row, strict=True)) for row in cells]
        return held
    are_lists = all(
        isinstance(value, list) and value and all(isinstance(row, dict) for row in value)
        for value in held
    )
    if are_lists and all(map(_SPLITS.fullmatch, tree)):
        return [{"split": name, **row} for name, rows in tree.items() for row in rows]
    return held[0] if are_lists and len(held) == 1 else [tree]


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


_FIELD = re.compile(r"\{([^{}]+)\}")  # a column within other letters, in a pattern: `{a}-{b}`
_CONSTANT = "="  # how a pattern begins that stands for one value in every row


def read_rows(path: Path, columns: Sequence[str]) -> dict[str, list[str]]:
    """Read columns of a table as strings, empty where a value is null; as `read_any`.

    Raises:
        StudyError: the table is missing, malformed, not UTF-8, or lacks a column.
    """
    return take_rows(read_any(path), path.name, columns)


def take_rows(table: pa.Table, file: str, columns: Sequence[str]) -> dict[str, list[str]]:
    """Take columns of a table that was read from a file, as `read_rows`."""
    taken = take_columns(table, file, columns)
    return {name: strings(taken.column(name), file, name) for name in taken.column_names}


def pattern_columns(pattern: str) -> list[str]:
    """Name the columns in a pattern: of `{a}-{b}` two; of `=word`, or none, no column."""
    if not pattern or pattern.startswith(_CONSTANT):
        return []
    return _FIELD.findall(pattern) or [pattern]


def fill_pattern(table: pa.Table, file: str, pattern: str) -> list[str]:
    """Fill a pattern such as `{a}-{b}` in each row, or `=word`, or take the column of that name.

    Raises:
        StudyError: the table lacks a column.
    """
    columns = take_rows(table, file, pattern_columns(pattern))
    if not columns:
        return [pattern.removeprefix(_CONSTANT)] * table.num_rows
    if pattern in columns:
        return columns[pattern]

    def filled(row: int) -> str:
        return _FIELD.sub(lambda match: clean_id(columns[match[1]][row]), pattern)

    return [filled(row) for row in range(table.num_rows)]


def _no_column(
    file: str, missing: Sequence[str], there: Sequence[str], wanted: Sequence[str] = ()
) -> StudyError:
    """Make the error of a table that lacks columns of those that are wanted."""
    # A name that differs in writing alone is a name, and no data.
    plain = {_plain(name) for name in missing}
    near = [name for name in there if _plain(name) in plain]
    meant = f"; it has {near}, written in another way" if near else ""
    return StudyError(
        f"table {file} has no column {list(missing)}{meant or only_columns(file, there, wanted)}; "
        "name its columns in source.columns, source.box_columns or source.label_id"
    )


def _plain(name: str) -> str:
    return re.sub(r"[\s_.#-]+", "", name).casefold()


def only_columns(file: str, there: Sequence[str], wanted: Sequence[str] = ()) -> str:
    """Name the columns that a table has, where these are names and not data.

    The first row of a CSV file may be a patient's, and the keys of a JSON file patients: without
    most of the columns that are `wanted` they are counted.
    """
    if not there:
        return ""
    are_names = 2 * len(set(wanted) & set(there)) > len(set(wanted))
    if file.lower().endswith(".parquet") or are_names:
        return f", only {list(there[:40])}"
    return f" among its {len(there)}, whose names may be data"


def strings(column: Any, table: str, name: str) -> list[str]:
    """Convert a column of a table to strings, empty where null or not a number.

    Whole numbers have no fraction, also where their column holds fractions, as pandas stores whole
    numbers next to blank ones.

    Raises:
        StudyError: it is nested, or holds bytes that are not text.
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_nested(column.type):
        raise StudyError(f"column {name!r} of {table} holds lists or objects; map a plain column")
    if pa.types.is_floating(column.type):
        # pandas writes 7 as 7.0 where another row is blank: an id must not change by that.
        column = pc.if_else(pc.is_finite(column), column, None)
        largest = pc.max(pc.abs(column)).as_py() or 0
        if pc.all(pc.equal(column, pc.floor(column))).as_py() and largest < 2**53:
            column = column.cast(pa.int64())
    try:
        values: list[str] = pc.fill_null(pc.cast(column, pa.string()), "").to_pylist()
    except pa.ArrowInvalid as error:
        raise StudyError(
            f"column {name!r} of {table} holds bytes; images in rows are read by source.kind "
            "huggingface, which writes them out once"
        ) from error
    return values


def read_columns(path: Path, columns: Sequence[str], fallback: str = "") -> Iterator[pa.Table]:
    """Read columns, also nested ones by dotted name, in parts; the first is without rows.

    Of CSV and Parquet no more than a part is in memory. ClassLabels of `datasets` become names.

    Raises:
        StudyError: the file cannot be read, or a column is missing.
    """
    parts = _read_parts(path, fallback, columns)
    return (take_columns(part, path.name, columns) for part in parts)


def _locate(
    file: str, names: Sequence[str], columns: Iterable[str]
) -> dict[str, tuple[str, list[str]]]:
    # `a.b.c` -> the column's name and the fields within it. A name with dots goes before a field.
    located: dict[str, tuple[str, list[str]]] = {}
    wanted = list(dict.fromkeys(columns))
    for column in wanted:
        parts = column.split(".")
        for cut in range(1, len(parts) + 1):
            if (head := ".".join(parts[:cut])) in names:
                located[column] = head, parts[cut:]
    if missing := [column for column in wanted if column not in located]:
        raise _no_column(file, missing, names, wanted)
    heads = dict.fromkeys(head for head, _ in located.values())
    if twice := [head for head in heads if list(names).count(head) > 1]:
        raise StudyError(f"table {file} has column {twice} twice; rename one of them")
    return located


def take_columns(table: pa.Table, file: str, columns: Iterable[str]) -> pa.Table:
    """Take columns of a table that was read from a file, as `read_columns`."""
    features = _features(table.schema, file)
    taken = {}
    for column, (head, fields) in _locate(file, table.column_names, columns).items():
        chunks = table.column(head).chunks or [pa.array([], table.schema.field(head).type)]
        try:
            taken[column] = pa.chunked_array(
                [take_field(chunk, fields, features.get(head)) for chunk in chunks]
            )
        except KeyError:
            raise _no_column(file, [column], []) from None
        except pa.ArrowException as error:
            raise StudyError(
                f"a ClassLabel of {file} has values beyond its names; write the file with all of "
                "them"
            ) from error
    return pa.table(taken)


def take_field(array: pa.Array, fields: Sequence[str], feature: Any = None) -> pa.Array:
    """Take a field of a field ... of objects, or of lists of objects; KeyError: there is none.

    Numbers of a ClassLabel, by the `feature` that describes the array, become its names.
    """
    described = _described(feature)
    if not fields and described.get("_type") != "ClassLabel":
        return array
    if is_list(array.type):  # they keep their lengths and nulls
        lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
        offsets = pa.concat_arrays([pa.array([0]), pc.cumulative_sum(lengths)])
        values = take_field(pc.list_flatten(array), fields, feature)
        return pa.LargeListArray.from_arrays(offsets, values, mask=array.is_null())
    if fields:
        name, *inner = fields
        if not pa.types.is_struct(array.type) or array.type.get_field_index(name) < 0:
            raise KeyError(name)
        return take_field(pc.struct_field(array, name), inner, described.get(name))
    names = described.get("names")
    names = [str(name) for name in names] if isinstance(names, list) else []
    # -1 stands for no label.
    return pa.array(names, pa.string()).take(pc.if_else(pc.less(array, 0), None, array))


def _described(feature: Any) -> dict[str, Any]:
    # What lists hold, in the form that `datasets` keeps features in; empty where it is none.
    while isinstance(feature, list) or (
        isinstance(feature, dict) and {"_type", "feature"} <= feature.keys()
    ):
        feature = next(iter(feature), None) if isinstance(feature, list) else feature["feature"]
    return feature if isinstance(feature, dict) else {}


def is_list(kind: pa.DataType) -> bool:
    """Whether values of a type are lists."""
    return isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType)


def _features(schema: pa.Schema, file: str) -> dict[str, Any]:
    # The tree of features that `datasets` keeps in a schema; empty where it is not from there.
    try:
        tree = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        return _described(tree.get("info", {}).get("features"))
    except (ValueError, AttributeError, RecursionError) as error:
        raise StudyError(
            f"the metadata `huggingface` of {file} are not those of `datasets`; write the file "
            "without them"
        ) from error


_EXCEL_TEXT = re.compile(r'="(.*)"', re.DOTALL)
_EXCEL_NUMBER = re.compile(r"-?\d([.,]\d+)?E\+\d{2,}", re.IGNORECASE)


def clean_id(text: str) -> str:
    """Strip an id of what no eye sees: blanks and marks round it, and the `="..."` of Excel.

    Raises:
        StudyError: it is a number in Excel's scientific notation, whose digits are lost.
    """
    if text.isascii() and text.isalnum():
        return text
    text = unicodedata.normalize("NFC", text).strip().strip(INVISIBLE).strip()
    if (quoted := _EXCEL_TEXT.fullmatch(text)) is not None:
        return clean_id(quoted[1])
    if _EXCEL_NUMBER.fullmatch(text):
        raise StudyError(
            "a table has an id in scientific notation such as 1.2E+12, as spreadsheets shorten "
            "long numbers, and different ids become one; export the column as text"
        )
    return text


_WRITINGS: dict[str, Callable[[str], str]] = {
    "case": str.casefold,
    "leading zeros": lambda text: re.sub(r"^0+(?=.)", "", text),
    "letters before the number": lambda text: re.sub(r"^[^\W\d]+_?(?=\d+$)", "", text),
    "blanks": lambda text: "".join(text.split()),
    "a final .0": lambda text: re.sub(r"\.0+$", "", text),
    "folders": lambda text: re.split(r"[/\\]", text)[-1],
    "the ending of a file's name": lambda text: re.sub(r"\.[A-Za-z]{2,5}(\.gz)?$", "", text),
}


def would_join(names: Iterable[str], others: Iterable[str]) -> str:
    """Count the names that would be among others if all were written alike; empty: none."""
    wanted, there = set(names), set(others)

    def joined(change: Callable[[str], str]) -> int:
        changed = {change(name) for name in there}
        return sum(change(name) in changed for name in wanted)

    def all_of(text: str) -> str:
        return reduce(lambda name, change: change(name), reversed(_WRITINGS.values()), text)

    counts = {writing: joined(change) for writing, change in _WRITINGS.items()}
    if not any(counts.values()):
        # No single difference explains it: perhaps all together do.
        counts = {", ".join(_WRITINGS): joined(all_of)}
    writing, count = max(counts.items(), key=lambda item: item[1])
    return f"; {count} of {len(wanted)} would be found but for {writing}" if count else ""
