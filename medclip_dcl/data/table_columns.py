"""Columns of a source's tables as strings, nested ones by dotted name, and ids that join tables.

ClassLabels of `datasets` read as their names.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from medclip_dcl.core.errors import StudyError
from medclip_dcl.data.table_files import INVISIBLE, error_words, read_any, read_table_parts

_PART_ROWS = 20_000

FIELD = re.compile(r"\{([^{}]+)\}")
"""A column within other letters, in a pattern such as `{a}-{b}`."""


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
    """Fill a pattern such as `{a}-{b}` in each row, or take the column of that name.

    Raises:
        StudyError: the table lacks a column.
    """
    if not FIELD.search(pattern):
        return take_rows(table, file, [pattern])[pattern]
    columns = take_rows(table, file, FIELD.findall(pattern))

    def filled(row: int) -> str:
        return FIELD.sub(lambda match: clean_id(columns[match[1]][row]), pattern)

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
    """Make the error of a table that lacks columns of those that are wanted."""
    # A name that differs in writing alone is a name, and no data.
    alike = {name: _plain(name) for name in missing}
    near = [name for name in there if _plain(name) in alike.values()]
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
    if file.lower().endswith((".parquet", ".arrow")) or are_names:
        return f", only {list(there[:40])}"
    return f" among its {len(there)}, whose names may be data"


def strings(column: Any, table: str, name: str) -> list[str]:
    """Convert a column of a table to strings, empty where null or not a number.

    Whole numbers have no fraction, also where their column holds fractions, as pandas stores whole
    numbers next to blank ones.

    Raises:
        StudyError: it is nested, or holds bytes that are not text.
    """
    values: list[str] = string_column(column, table, name).to_pylist()
    return values


def string_column(column: Any, table: str, name: str) -> pa.ChunkedArray:
    """Convert a column as `strings`, in the form that Arrow keeps it in."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_nested(column.type):
        raise StudyError(f"column {name!r} of {table} holds lists or objects; map a plain column")
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_finite(column), column, None)
        if pc.all(pc.equal(column, pc.floor(column))).as_py() and _largest(column) < 2**53:
            column = column.cast(pa.int64())
    try:
        return pc.fill_null(pc.cast(column, pa.string()), "")
    except pa.ArrowInvalid as error:
        raise StudyError(
            f"column {name!r} of {table} holds bytes; images in rows are read by source.kind "
            "huggingface, which writes them out once"
        ) from error


def _largest(column: Any) -> float:
    return float(pc.max(pc.abs(column)).as_py() or 0)


def read_columns(path: Path, columns: Sequence[str], fallback: str = "") -> Iterator[pa.Table]:
    """Read columns, also nested ones by dotted name, in parts; the first is without rows.

    Of CSV and Parquet no more than a part is in memory. ClassLabels of `datasets` become names.

    Raises:
        StudyError: the file cannot be read, or a column is missing.
    """
    suffix, wanted = path.suffix.lower(), list(dict.fromkeys(columns))
    try:
        if suffix == ".parquet" and path.is_file():
            with pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
                schema = file.schema_arrow
                heads = [head for head, _ in _split(schema.names, wanted, path)]
                yield take_columns(schema.empty_table(), schema, wanted, path)
                for batch in file.iter_batches(_PART_ROWS, columns=heads, use_threads=False):
                    yield take_columns(pa.Table.from_batches([batch]), schema, wanted, path)
        else:
            for part in read_table_parts(path, fallback):
                yield take_columns(part, part.schema, wanted, path)
    except (pa.ArrowException, OSError) as error:
        raise StudyError(
            f"table {path} cannot be read ({error_words(error)}); write it again"
        ) from error


def _split(names: Sequence[str], wanted: Sequence[str], path: Path) -> list[tuple[str, list[str]]]:
    split = {name: _split_column(names, name) for name in wanted}
    if missing := [name for name, parts in split.items() if parts is None]:
        raise no_column(path.name, missing, list(names), wanted)
    require_columns(path.name, [parts[0] for parts in split.values() if parts], names)
    return [parts for parts in split.values() if parts]


def _split_column(names: Sequence[str], column: str) -> tuple[str, list[str]] | None:
    # `a.b.c` -> the column's name and the fields within it. A name with dots goes before a field.
    parts = column.split(".")
    for cut in range(len(parts), 0, -1):
        if (head := ".".join(parts[:cut])) in names:
            return head, parts[cut:]
    return None


def take_columns(table: pa.Table, schema: pa.Schema, wanted: Sequence[str], path: Path) -> pa.Table:
    """Take columns by dotted name, with the names of ClassLabels, which `schema` has."""
    features = _features(schema, path)
    columns = {}
    for column, (head, fields) in zip(wanted, _split(schema.names, wanted, path), strict=True):
        labels = _class_names(features, [head, *fields], path.name)
        empty = pa.array([], table.schema.field(head).type)
        try:
            chunks = [take_field(chunk, fields) for chunk in (*table.column(head).chunks, empty)]
        except KeyError:
            raise no_column(path.name, [column], []) from None
        if labels:
            try:
                chunks = [_named(chunk, labels) for chunk in chunks]
            except pa.ArrowIndexError as error:
                raise StudyError(
                    f"a ClassLabel of {path.name} has numbers beyond its names; write the file "
                    "with all of them"
                ) from error
        columns[column] = pa.chunked_array(chunks)
    return pa.table(columns)


def take_field(array: pa.Array, fields: Sequence[str]) -> pa.Array:
    """Take a field of a field ... of a column of objects, or of lists of objects; KeyError."""

    def child(objects: pa.Array, name: str) -> pa.Array:
        if not pa.types.is_struct(objects.type) or objects.type.get_field_index(name) < 0:
            raise KeyError(name)
        return pc.struct_field(objects, name)

    for name in fields:
        array = within_lists(array, partial(child, name=name))
    return array


def is_list(kind: pa.DataType) -> bool:
    """Whether values of a type are lists."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def within_lists(array: pa.Array, change: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Change what lists hold, lists of lists included; the lists keep their lengths and nulls."""
    if not is_list(array.type):
        return change(array)
    lengths = pc.list_value_length(array)
    ends = np.cumsum(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False), dtype=np.int64)
    missing = np.append(array.is_null().to_numpy(zero_copy_only=False), False)
    offsets = pa.array(np.append(0, ends), pa.int64(), mask=missing)
    return pa.LargeListArray.from_arrays(offsets, within_lists(pc.list_flatten(array), change))


def _features(schema: pa.Schema, path: Path) -> Any:
    # The tree of features that `datasets` keeps in a schema; empty where it is not from there.
    try:
        tree = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        return tree.get("info", {}).get("features", {})
    except (ValueError, AttributeError, RecursionError) as error:
        raise StudyError(
            f"the metadata `huggingface` of {path.name} are not those of `datasets`; write the "
            "file without them"
        ) from error


def _class_names(features: Any, names: Sequence[str], file: str) -> list[str]:
    # The tree of features, as `datasets` keeps it in a schema: lists have one feature.
    node = features
    for name in (*names, None):
        while isinstance(node, list) or (isinstance(node, dict) and "feature" in node):
            node = next(iter(node), None) if isinstance(node, list) else node["feature"]
        if name is not None:
            node = node.get(name) if isinstance(node, dict) else None
    if not isinstance(node, dict) or node.get("_type") != "ClassLabel":
        return []
    given = node.get("names")
    if not isinstance(given, list) or not given:
        raise StudyError(f"a ClassLabel of {file} has no names; write the file with them")
    return [str(name) for name in given]


def _named(array: pa.Array, labels: Sequence[str]) -> pa.Array:
    # -1 stands for no label.
    def name(codes: pa.Array) -> pa.Array:
        return pa.array(labels).take(pc.if_else(pc.less(codes, 0), None, codes))

    return within_lists(array, name)


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
        counts = {", ".join(_WRITINGS): joined(all_of)}
    writing, count = max(counts.items(), key=lambda item: item[1])
    return f"; {count} of {len(wanted)} would be found but for {writing}" if count else ""
