"""Tables of a source: CSV, Parquet or JSON lines, plain or gzipped -> columns of strings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json

from medclip_dcl.data.formats import is_pointer
from medclip_dcl.errors import StudyError

_BLOCK = 32 << 20
_HEAD = 200


def read_rows(path: Path, columns: Sequence[str], fallback: str = "") -> dict[str, list[str]]:
    """Read columns of a table as strings.

    Args:
        path: `.csv`, `.parquet`, `.jsonl` or `.json`; the text formats also with `.gz`.
        columns: names of columns that it must have.
        fallback: encoding of a CSV table that is not UTF-8; empty: such a table is refused.

    Returns:
        Column -> values; an empty string where a value is null.

    Raises:
        StudyError: the table is missing, malformed, not UTF-8, or lacks a column.
    """
    table = read_any(path, fallback=fallback)
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise StudyError(
            f"table {path.name} has no column {missing}, only {table.column_names[:40]}; "
            "name its columns in source.columns, or source.box_columns"
        )
    return {name: _strings(table.column(name), path.name, name) for name in dict.fromkeys(columns)}


def read_any(
    path: Path, types: Mapping[str, pa.DataType] | None = None, fallback: str = ""
) -> pa.Table:
    """Read a whole table; CSV values stay strings unless a type is given.

    Args:
        path: the table.
        types: column -> type, for CSV.
        fallback: encoding of a CSV table that is not UTF-8.

    Raises:
        StudyError: it is missing, malformed or not UTF-8.
    """
    if not path.is_file():
        raise StudyError(f"table {path} is missing; set source.root and source.table to your data")
    with path.open("rb") as stream:
        if is_pointer(stream.read(_HEAD)):
            raise StudyError(
                f"table {path} is a pointer of git-LFS or git-annex; fetch its content"
            )
    failure: Exception | None = None
    for encoding in ("utf8", fallback) if fallback else ("utf8",):
        try:
            return _read(path, dict(types or {}), encoding)
        except (pa.ArrowException, OSError, UnicodeDecodeError, LookupError) as error:
            failure = error
    kind = type(failure).__name__
    raise StudyError(
        f"table {path} cannot be read ({kind}); give UTF-8 text, or set source.fallback_encoding"
    ) from failure


def _read(path: Path, types: dict[str, pa.DataType], encoding: str) -> pa.Table:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    kind = (
        suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else (suffixes or [""])[-1]
    )
    if kind == ".parquet":
        return pq.read_table(path)
    if kind in {".jsonl", ".json"}:
        return arrow_json.read_json(path, arrow_json.ReadOptions(block_size=_BLOCK))
    read = arrow_csv.ReadOptions(block_size=_BLOCK, encoding=encoding)
    names = _header(path, read)
    convert = arrow_csv.ConvertOptions(
        column_types={name: types.get(name, pa.string()) for name in names},
        strings_can_be_null=True,
    )
    parse = arrow_csv.ParseOptions(newlines_in_values=True)
    return arrow_csv.read_csv(path, read, parse, convert)


def _header(path: Path, read: arrow_csv.ReadOptions) -> list[str]:
    options = arrow_csv.ParseOptions(newlines_in_values=True)
    with arrow_csv.open_csv(path, read, options) as reader:
        names: list[str] = reader.schema.names
    return names


def _strings(column: Any, table: str, name: str) -> list[str]:
    if pa.types.is_nested(column.type):
        raise StudyError(f"column {name!r} of {table} holds lists or objects; map a plain column")
    filled = pc.fill_null(pc.cast(column, pa.string()), "")
    values: list[str] = filled.to_pylist()
    return values
