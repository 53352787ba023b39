"""Tables with declared columns: Parquet with checked pages, or Arrow that is mapped into memory."""

import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from medclip_dcl.core.errors import ArtifactCorrupt
from medclip_dcl.core.files import denials_named, sync_file, write_bytes

_GROUP_ROWS = 1 << 18  # rows that are written, and read in parts, at a time
_ROWS_AT_ONCE = 20_000  # as Python's objects: they take ten times what a table takes

SPLITS = ("train", "validate", "test")  # values of every column `split`


@dataclass(frozen=True)
class Column:
    """One column: its name, Arrow type, and what it means, unit included."""

    name: str
    type: pa.DataType
    meaning: str


@dataclass(frozen=True)
class TableFormat:
    """The columns of a table, in order, and the name of its file.

    A file `.parquet` is compressed and its pages carry checksums. A file `.arrow` is read
    by memory map, so that the processes of a machine share its pages; its bytes are
    checked where the artifact is opened.
    """

    file: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the columns."""
        return pa.schema([(column.name, column.type) for column in self.columns])


def write_table(
    folder: Path, form: TableFormat, rows: Iterable[Mapping[str, Any]] | pa.Table
) -> Path:
    """Write rows, or a table that has the columns already, and give the file's path.

    Raises:
        ValueError: a row does not have exactly the columns of `form`.
    """
    path = folder / form.file
    if path.suffix == ".arrow":
        with pa.ipc.new_file(str(path), form.schema) as writer:
            writer.write_table(pa.concat_tables(_tables(form, rows)).combine_chunks())
        sync_file(path)
    else:
        with TableWriter(folder, form) as parts:
            parts.add_rows(rows)
    return path


def _tables(form: TableFormat, rows: Iterable[Mapping[str, Any]] | pa.Table) -> Iterator[pa.Table]:
    if isinstance(rows, pa.Table):
        yield rows.select(form.schema.names).cast(form.schema)
        return
    names, left = set(form.schema.names), iter(rows)
    yield form.schema.empty_table()
    while some := list(islice(left, _ROWS_AT_ONCE)):
        if any(set(row) != names for row in some):
            raise ValueError(f"a row of {form.file} does not have exactly the columns {names}")
        yield pa.Table.from_pylist(some, schema=form.schema)


class TableWriter:
    """Writes a table of Parquet in parts: however they are cut, equal rows give equal bytes."""

    def __init__(self, folder: Path, form: TableFormat) -> None:
        self._path, self._form, self._schema = folder / form.file, form, form.schema
        self._waiting = form.schema.empty_table()
        self.rows = 0

    def __enter__(self) -> Self:
        self._file = pq.ParquetWriter(
            self._path, self._schema, compression="zstd", write_page_checksum=True
        )
        return self

    def add(self, table: pa.Table) -> None:
        """Add rows that have the columns already."""
        self.rows += len(table)
        self._waiting = pa.concat_tables([self._waiting, table.cast(self._schema)])
        while len(self._waiting) >= _GROUP_ROWS:
            self._write(self._waiting.slice(0, _GROUP_ROWS))
            self._waiting = self._waiting.slice(_GROUP_ROWS)

    def add_rows(self, rows: Iterable[Mapping[str, Any]] | pa.Table) -> None:
        """Add rows as `write_table` does."""
        for table in _tables(self._form, rows):
            self.add(table)

    def _write(self, table: pa.Table) -> None:
        self._file.write_table(table.combine_chunks())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if kind is None and (len(self._waiting) or not self.rows):
            self._write(self._waiting)
        self._file.close()
        if kind is None:
            sync_file(self._path)


def read_table(folder: Path, form: TableFormat, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a table, or some columns of it, checking its pages and its columns.

    Raises:
        ArtifactCorrupt: the file cannot be read, or its columns are others.
    """
    path = folder / form.file
    with damage_named(path):
        if path.suffix == ".arrow":
            with pa.memory_map(str(path)) as source:
                table = pa.ipc.open_file(source).read_all()
            table.validate(full=True)
        else:
            table = pq.ParquetFile(path, page_checksum_verification=True).read()  # no pandas
    _require_columns(path, form, table.schema)
    return table.select(list(columns)) if columns is not None else table


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turn the errors of a table that cannot be read into ArtifactCorrupt."""
    try:
        with denials_named(path):
            yield
    except (OSError, pa.ArrowException) as error:
        raise ArtifactCorrupt(f"table {path} is missing or damaged; rerun its job") from error


def _require_columns(path: Path, form: TableFormat, schema: pa.Schema) -> None:
    if schema.remove_metadata() != form.schema:
        raise ArtifactCorrupt(f"table {path} has other columns than it must; rerun its job")


def read_in_parts(
    folder: Path, form: TableFormat, columns: Sequence[str], whole: str = ""
) -> Iterator[pa.Table]:
    """Read some columns of a table of Parquet in parts, which bounds the memory that it takes.

    No part is cut where rows next to each other have one value of the column `whole`.

    Raises:
        ArtifactCorrupt: as of `read_table`.
    """
    path, rest = folder / form.file, form.schema.empty_table().select(list(columns))
    with damage_named(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        _require_columns(path, form, file.schema_arrow)
        for batch in file.iter_batches(_GROUP_ROWS, columns=list(columns), use_threads=False):
            part = pa.concat_tables(
                [rest, pa.Table.from_batches([batch]).select(rest.schema.names)]
            )
            end = len(part)
            if whole:
                end = pc.index(part[whole], part[whole][-1]).as_py()
            rest = part.slice(end).combine_chunks()
            if end:
                yield part.slice(0, end).combine_chunks()
    if len(rest):
        yield rest


def spread_rows(count: int, most: int) -> npt.NDArray[np.int64]:
    """Choose at most `most` of `count` rows at even distances; ascending."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an array of numbers as a .npy file, whole or not at all."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.ascontiguousarray(array), allow_pickle=False)
    write_bytes(path, stream.getvalue())


def map_array(path: Path, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Map a .npy file of the given type into memory; pages are read when they are touched.

    No descriptor stays open, as one of `np.memmap` would: a large index has thousands of files.
    """
    import torch  # not waited for by those who read tables alone

    try:
        with denials_named(path):
            with path.open("rb") as stream:
                np.lib.format.read_magic(stream)
                shape, is_transposed, stored = np.lib.format.read_array_header_1_0(stream)
                start, size = stream.tell(), os.fstat(stream.fileno()).st_size
            # Copy on write: torch warns of a read-only array, and nothing may reach the file.
            data = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).numpy()
        is_whole = size - start == math.prod(shape) * stored.itemsize
        if is_transposed or not is_whole or stored != np.dtype(dtype):
            raise ValueError("the file is not what its header, or its reader, says")
    except (OSError, ValueError, RuntimeError) as error:
        raise ArtifactCorrupt(
            f"array {path} of {np.dtype(dtype)} cannot be read; rerun the job that made it"
        ) from error
    array: npt.NDArray[Any] = data[start:].view(stored).reshape(shape)
    return array
