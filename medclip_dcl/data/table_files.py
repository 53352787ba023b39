"""Table files of a source: CSV, Parquet, Arrow and JSON.

What is no table but a pointer to one, left where git-LFS or git-annex fetched no content, is
refused.
"""

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import json as arrow_json

from medclip_dcl.core.errors import StudyError
from medclip_dcl.data.csv_files import BLOCK, UTF16, open_plain, read_csv

_POINTERS = (b"version https://git-lfs.github.com/spec/", b"/annex/objects/", b"../.git/annex/")
_POINTER_HEAD = 200
POINTER_BYTES = 1024
"""No pointer of git-LFS or git-annex is longer."""


def is_pointer(head: bytes) -> bool:
    """Whether a file is a pointer of git-LFS or git-annex, left where content was not fetched.

    Source: git-LFS specification, "The Pointer"; git-annex, "pointer file".
    """
    return head.startswith(_POINTERS)


_HEAD_BYTES = 4096
# Beginning of a file -> what it is, and what to do.
_FORMS = {
    b"PK\x03\x04": "is an Excel workbook or a zip file; save the sheet as CSV UTF-8",
    b"\xd0\xcf\x11\xe0": "is an Excel workbook; save the sheet as CSV UTF-8",
    b"PAR1": "is Parquet; let its name end in .parquet",
    b"ARROW1": "is Arrow; let its name end in .arrow",
    b"\x1f\x8b": "is compressed; let its name end in .gz",
    b"<": "is HTML or XML; export it as CSV UTF-8",
}


def read_any(path: Path, fallback: str = "") -> pa.Table:
    """Read a table: `.csv`, `.parquet`, `.arrow`, `.jsonl`, `.json`; text also with `.gz`.

    CSV stays strings; `fallback`: that of `read_csv`.

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
        elif kind.lower() == ".arrow":
            table = _read_arrow(path)
            table.validate(full=True)
            yield table
        else:
            refuse_other_forms(path)
            if kind.lower() in {".jsonl", ".json"}:
                yield _read_json(path)
            else:
                yield from read_csv(path, fallback)
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


def refuse_other_forms(path: Path) -> None:
    """Refuse a file that holds no text, and name what it is; StudyError."""
    with open_plain(path) as stream:
        head = stream.read(_HEAD_BYTES)
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    fault = next((words for magic, words in _FORMS.items() if start.startswith(magic)), "")
    if not start:
        fault = "is empty; name another"
    elif not fault and b"\0" in head and not head.startswith(UTF16):
        fault = "holds bytes that are not text; give CSV, Parquet or JSON, and text as UTF-8"
    if fault:
        raise StudyError(f"table {path} {fault}")


_DEEPEST = 200  # objects and lists within each other; Arrow's parser crashes on 100,000
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_STEPS = np.zeros(256, np.int8)  # byte -> by how much it goes deeper
_STEPS[[*b"{["]], _STEPS[[*b"}]"]] = 1, -1


def _read_json(path: Path) -> pa.Table:
    _refuse_depth(path)
    objects = _objects(path)
    if objects is not None:
        return _table_of_objects(objects, path)
    options = arrow_json.ReadOptions(block_size=BLOCK)
    try:
        with _json_bytes(path) as stream:
            table = arrow_json.read_json(stream, options)
        # Arrow takes the text 2026-03-01 for a time, and would write it in another way.
        times = [item.name for item in table.schema if pa.types.is_timestamp(item.type)]
        if times:
            texts = arrow_json.ParseOptions(pa.schema([(name, pa.string()) for name in times]))
            with _json_bytes(path) as stream:
                table = arrow_json.read_json(stream, options, texts)
    except pa.ArrowException:  # a fault, NaN, or numbers and texts in one column
        objects = [_parsed(line, number, path) for number, line in _json_lines(path)]
        return _table_of_objects(objects, path)
    return table


def _json_bytes(path: Path) -> IO[bytes]:
    # In UTF-8, without a byte order mark.
    stream = open_plain(path)
    head = stream.read(3)
    if head.startswith(UTF16):
        with stream:
            stream.seek(0)
            return io.BytesIO(stream.read().decode("utf-16").encode())
    stream.seek(3 if head == b"\xef\xbb\xbf" else 0)
    return stream


def _json_lines(path: Path) -> Iterator[tuple[int, str]]:
    # Lines that are not blank, with their numbers from 1.
    with io.TextIOWrapper(_json_bytes(path), encoding="utf-8") as text:
        yield from ((number, line.rstrip()) for number, line in enumerate(text, 1) if line.strip())


def _unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(unique := dict(items)) < len(items):
        raise ValueError("an object has one name twice")
    return unique


def _parsed(text: str, line: int, path: Path) -> Any:
    """Parse JSON, NaN as null; a fault is named by its line, counted from `line` on, and column."""
    try:
        return json.loads(text, parse_constant=lambda _: None, object_pairs_hook=_unique)
    except ValueError as error:
        where, what = f"line {line}", str(error)
        if isinstance(error, json.JSONDecodeError):
            where, what = f"line {line + error.lineno - 1}, column {error.colno}", error.msg
        raise StudyError(
            f"{where} of table {path} is not JSON ({what}); give one object a line, a list of "
            "objects, or an object of objects"
        ) from error


def _objects(path: Path) -> list[Any] | None:
    """Read a JSON file of a list of objects, or of an object of objects; None: of JSON lines."""
    lines = _json_lines(path)
    number, first = next(lines)
    _, second = next(lines, (0, ""))
    with suppress(StudyError):  # else the first line does not end it, or is at fault
        tree = _parsed(first, number, path)
        if second:
            return None
        return _rows_of_tree(tree)
    if first.lstrip().startswith("{") and second.lstrip().startswith("{"):
        return None
    with io.TextIOWrapper(_json_bytes(path), encoding="utf-8") as text:
        return _rows_of_tree(_parsed(text.read(), 1, path))


def _rows_of_tree(tree: Any) -> list[Any] | None:
    if isinstance(tree, dict) and all(isinstance(value, dict) for value in tree.values()):
        return list(tree.values())
    return tree if isinstance(tree, list) else None


def _table_of_objects(objects: Sequence[Any], path: Path) -> pa.Table:
    if not objects or not all(isinstance(item, dict) for item in objects):
        raise StudyError(
            f"table {path} lists no objects; give one object a line, a list of objects, or an "
            "object of objects"
        )
    names = dict.fromkeys(name for item in objects for name in item)
    return pa.table({name: _json_column([x.get(name) for x in objects], path) for name in names})


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
