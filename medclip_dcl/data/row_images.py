"""Images that are bytes in a row of a Parquet or Arrow file: their names, and how they are read.

In the place of a file's path stands `FILE#COLUMN[ROW]`, or `FILE#COLUMN[ROW][K]` where the row
holds a list; FILE is relative to the source's root, rows and K count from 0. Bytes are handed on as
they are: nothing here looks into them.
"""

import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from medclip_dcl.errors import StudyError
from medclip_dcl.files import path_under


class Bucket(Protocol):
    """Objects of a store in the place of a folder; paths are relative to its URL."""

    url: str

    def state(self, path: str) -> tuple[int, str] | None:
        """Give an object's size and version; None: it is not there."""

    def read(self, path: str) -> bytes:
        """Read an object; StudyError where there is none, StoreError where the store fails."""

    def pieces(self, path: str) -> Iterator[bytes]:
        """Read an object of any size piece by piece; as `read`."""

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        """Read some bytes of an object; as `read`."""

    def write(self, path: str, file: Path) -> None:
        """Write a file as an object; StoreError where the store fails."""


_NAME = re.compile(
    r"(?P<file>.+\.(?:parquet|arrow))#(?P<column>.+?)\[(?P<row>\d+)\](?:\[(?P<k>\d+)\])?", re.DOTALL
)
_KEPT_GROUPS = 4  # row groups of Parquet in memory at a time


def row_name(file: str, column: str, row: int, k: int | None = None) -> str:
    """Name an image that is in a row."""
    return f"{file}#{column}[{row}]" + ("" if k is None else f"[{k}]")


def file_of(path: str) -> str:
    """Give the file that a manifest's `path` is in: the path itself, or FILE of a row's name."""
    match = _NAME.fullmatch(path)
    return match["file"] if match else path


def stamp_files(root: Path | Bucket, paths: Iterable[str]) -> str:
    """Name the state of files without reading them: a hash of names, sizes and times of change."""
    digest = hashlib.sha256()

    def state(file: str) -> str:
        if not isinstance(root, Path):
            return "\0".join(map(str, root.state(file) or ("missing",)))
        try:
            facts = (root / file).stat()
        except (OSError, ValueError):
            return "missing"
        return f"{facts.st_size}\0{facts.st_mtime_ns}"

    of_rows = lru_cache(state)  # many images are in one file
    for path in paths:
        file = file_of(path)
        found = state(file) if file == path else of_rows(file)
        digest.update(f"{path}\0{found}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def image_source(root: Path | Bucket, path: str) -> Path | bytes | memoryview:
    """Give what the image gate reads for a manifest's `path`: a file, an object, or bytes of a row.

    Raises:
        StudyError: the path leaves the root, or there is no such file, column, row or image.
        StoreError: the object store does not answer, or refuses.
    """
    if not isinstance(root, Path):
        return root.read(path)
    match = _NAME.fullmatch(path)
    if match is None:
        return path_under(root, path)
    file = path_under(root, match["file"])
    facts = file.stat()
    key = (str(file), facts.st_size, facts.st_mtime_ns, match["column"])
    k = None if match["k"] is None else int(match["k"])
    try:
        read = _from_parquet if file.suffix == ".parquet" else _from_arrow
        value = read(*key, int(match["row"]))
        value = value if k is None else value[k]
        value = value["bytes"] if pa.types.is_struct(value.type) else value
        data = value.as_buffer()
    except (OSError, pa.ArrowException, AttributeError, LookupError, TypeError) as error:
        raise StudyError("a row that the manifest names holds no such image") from error
    if data is None:
        raise StudyError("a row that the manifest names holds no image")
    return memoryview(data)


def open_arrow(path: Path) -> pa.Table:
    """Map an Arrow file, of files or of streams as `datasets` writes them, without reading it."""
    source = pa.memory_map(str(path))
    try:
        return pa.ipc.open_file(source).read_all()
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_stream(source).read_all()


def split_column(names: Sequence[str], column: str) -> tuple[str, list[str]] | None:
    """Find `a.b.c` among columns: the column's name, and the fields within it; None: it is missing.

    A name with dots goes before a field.
    """
    parts = column.split(".")
    for cut in range(len(parts), 0, -1):
        if (head := ".".join(parts[:cut])) in names:
            return head, parts[cut:]
    return None


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


# One thread reads a row group, and those that want the same one wait for it.
_lock = threading.Lock()


def _from_parquet(path: str, size: int, changed_ns: int, column: str, row: int) -> Any:
    with _lock:
        _, starts = _parquet(path, size, changed_ns)
        group = int(np.searchsorted(starts, row, "right")) - 1
        values = _group(path, size, changed_ns, column, group)
    return values[row - int(starts[group])]


@lru_cache(16)
def _parquet(path: str, _size: int, _changed_ns: int) -> tuple[pq.ParquetFile, Any]:
    # An open file, and the first row of each of its row groups.
    file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    rows = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    return file, np.cumsum([0, *rows], dtype=np.int64)[:-1]


@lru_cache(_KEPT_GROUPS)
def _group(path: str, size: int, changed_ns: int, column: str, group: int) -> pa.ChunkedArray:
    file, _ = _parquet(path, size, changed_ns)
    head, fields = split_column(file.schema_arrow.names, column) or (column, [])
    table = file.read_row_group(group, columns=[head], use_threads=False)
    return pa.chunked_array([take_field(chunk, fields) for chunk in table.column(0).chunks])


def _from_arrow(path: str, size: int, changed_ns: int, column: str, row: int) -> Any:
    with _lock:
        table = _arrow(path, size, changed_ns)
    head, fields = split_column(table.column_names, column) or (column, [])
    return take_field(table.column(head).slice(row, 1).combine_chunks(), fields)[0]


@lru_cache(256)
def _arrow(path: str, _size: int, _changed_ns: int) -> pa.Table:
    return open_arrow(Path(path))
