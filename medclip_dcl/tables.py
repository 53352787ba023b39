"""Tables with declared columns: Parquet with checked pages, or Arrow that is mapped into memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from medclip_dcl.errors import ArtifactCorrupt
from medclip_dcl.files import denials_named, sync_file

SPLITS = ("train", "validate", "test")
"""Values of every column `split`."""


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
    folder: Path, form: TableFormat, rows: Sequence[Mapping[str, Any]] | pa.Table
) -> Path:
    """Write rows, or a table that has the columns already, and give the file's path.

    Raises:
        ValueError: a row does not have exactly the columns of `form`.
    """
    if isinstance(rows, pa.Table):
        table = rows.select(form.schema.names).cast(form.schema)
    else:
        names = set(form.schema.names)
        if any(set(row) != names for row in rows):
            raise ValueError(f"a row of {form.file} does not have exactly the columns {names}")
        table = pa.Table.from_pylist(list(rows), schema=form.schema)
    path = folder / form.file
    if path.suffix == ".arrow":
        with pa.ipc.new_file(str(path), form.schema) as writer:
            writer.write_table(table.combine_chunks())
    else:
        pq.write_table(table, path, compression="zstd", write_page_checksum=True)
    sync_file(path)
    return path


def read_table(folder: Path, form: TableFormat, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a table, or some columns of it, checking its pages and its columns.

    Raises:
        ArtifactCorrupt: the file cannot be read, or its columns are others.
    """
    path = folder / form.file
    try:
        with denials_named(path):
            if path.suffix == ".arrow":
                with pa.memory_map(str(path)) as source:
                    table = pa.ipc.open_file(source).read_all()
                table.validate(full=True)
            else:
                table = pq.read_table(path, page_checksum_verification=True, memory_map=False)
    except (OSError, pa.ArrowException) as error:
        raise ArtifactCorrupt(f"table {path} is missing or damaged; rerun its job") from error
    if table.schema.remove_metadata() != form.schema:
        raise ArtifactCorrupt(
            f"table {path} has other columns than {form.file} must; rerun its job"
        )
    return table.select(list(columns)) if columns is not None else table


def spread_rows(count: int, most: int) -> npt.NDArray[np.int64]:
    """Choose at most `most` of `count` rows at even distances; ascending."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))
