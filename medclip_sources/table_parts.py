"""Tables of reports alone, read in parts by study id: memory does not grow with the table.

The table is read twice: for the ids, splits and labels of its rows as columns, by which rows are
divided, then for the texts, which wait in a file per part.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from medclip_dcl.data.records import RawStudies
from medclip_dcl.data.row_images import Bucket
from medclip_dcl.data.source_settings import Resolve, SourceConfig, relative_to_root
from medclip_dcl.data.table_files import string_column
from medclip_sources.labels import label_table, read_row_labels
from medclip_sources.rows import read_column_parts
from medclip_sources.table import (
    RowFile,
    RowRecords,
    mapped_columns,
    mapped_files,
    mapped_roles,
    require_roles,
    role_values,
    split_name,
)

PART_ROWS = 100_000
"""Rows of a part, but for those of a study, which stay together: as Python's objects 300 MB."""

_FILE = RowFile(Path())
_ROW, _LABEL = "row", "label "  # of a part's files; no role is called so
_SPLITS = pa.schema([("subject", pa.string()), ("split", pa.string())])
_IMAGE_ROLES = {"path", "image", "image_id", "view", "width", "height"}


def has_parts(settings: SourceConfig) -> bool:
    """Whether a source is a table of reports alone whose rows can be read in any order."""
    names, boxed, _ = mapped_roles(settings)
    whole = {role for role, name in (names | boxed).items() if name} & {*_IMAGE_ROLES, *boxed}
    by_list = isinstance(settings.columns.get("labels"), str)  # which names there are: of all rows
    return settings.kind == "table" and not (whole or by_list or settings.labels or settings.boxes)


def read_table_in_parts(
    root: Path | Bucket, settings: SourceConfig, resolve: Resolve
) -> RawStudies:
    """Read `source.table` as `read_mapped_table`, its studies in parts, and not before asked for.

    Raises:
        ConfigError, StudyError: as of `read_row_files`, most of them by the parts.
    """
    files = mapped_files(root, settings, resolve)
    names, boxed, _ = mapped_roles(settings)
    require_roles(names, boxed, settings, has_splits=all(file.split for file in files))
    several = len(files) > 1
    return RawStudies(
        root,
        has_images=False,
        tables={f"row/{file.path.name}" if several else "table": file.path for file in files},
        by_patient=not settings.is_anonymous,
        parts=partial(_parts, files, settings, root),
    )


class _Rows(NamedTuple):
    """Facts of all rows."""

    part: npt.NDArray[np.int64]  # in order of study id
    splits: pa.Table  # `subject` and `split`, each pair once


def _parts(
    files: Sequence[RowFile], settings: SourceConfig, root: Path | Bucket, folder: Path
) -> Iterator[RawStudies]:
    rows = _survey(files, settings, root)
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    folder.mkdir()
    paths = [folder / f"{number}.arrow" for number in range(int(rows.part.max(initial=0)) + 1)]
    _divide(_role_parts(files, settings, root), rows.part, paths)
    for path in paths:
        yield _part(path, settings, root, rows.splits, files[0].path.name)
        path.unlink()
    folder.rmdir()


def _role_parts(
    files: Sequence[RowFile], settings: SourceConfig, root: Path | Bucket
) -> Iterator[pa.Table]:
    """Give the roles of some rows, and their labels under `_LABEL`, as columns of strings."""
    names, _, of_labels = mapped_roles(settings)
    wanted, _ = mapped_columns(settings)
    for file in files:
        for part in read_column_parts(file.path, wanted, root, settings):
            columns = {
                role: pa.array(role_values(part, name, file.path.name), pa.string())
                for role, name in names.items()
                if name
            }
            if file.split:
                columns["split"] = pa.array([file.split] * len(part), pa.string())
            columns |= {
                _LABEL + name: string_column(part[name], file.path.name, name) for name in of_labels
            }
            yield pa.table(columns)


def _survey(files: Sequence[RowFile], settings: SourceConfig, root: Path | Bucket) -> _Rows:
    studies: list[pa.Array] = []
    splits: list[pa.Table] = []
    labels: list[pa.Table] = []
    total = 0
    for part in _role_parts(files, settings, root):
        numbers = range(total, total + len(part))
        total += len(part)
        made = [f"row-{number:06d}" for number in numbers]
        ids = part["study_id"].to_pylist() if "study_id" in part.column_names else made
        studies.append(pa.array(ids, pa.string()))
        if "split" in part.column_names:
            named = part["subject_id"].to_pylist() if "subject_id" in part.column_names else ids
            subjects = [subject.strip() for subject in named]
            given = part["split"].to_pylist()
            usable = [
                (subject, split_name(split, number))
                for study, subject, split, number in zip(ids, subjects, given, numbers, strict=True)
                if study.strip() and subject and split
            ]
            columns = list(zip(*usable, strict=True)) or [(), ()]
            pairs = dict(zip(("subject", "split"), columns, strict=True))
            splits.append(_distinct(pa.table(pairs, schema=_SPLITS)))
        labels.append(_labels(part, coded=True))
    if labels[0].num_columns:  # what is wrong with them is said of all rows
        read_row_labels(pa.concat_tables(labels), files[0].path.name, settings, {})
    return _Rows(
        _part_of_rows(pa.chunked_array(studies, pa.string())),
        _distinct(pa.concat_tables([_SPLITS.empty_table(), *splits])),
    )


def _distinct(table: pa.Table) -> pa.Table:
    return table.group_by(table.column_names).aggregate([])


def _labels(part: pa.Table, *, coded: bool = False) -> pa.Table:
    found = {
        name.removeprefix(_LABEL): part[name].dictionary_encode() if coded else part[name]
        for name in part.column_names
        if name.startswith(_LABEL)
    }
    return pa.table(found)


def _part_of_rows(studies: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    order = pc.sort_indices(studies).to_numpy()
    ranked = studies.take(pa.array(order)).combine_chunks()
    starts = np.ones(len(ranked), dtype=bool)
    starts[1:] = pc.not_equal(ranked[1:], ranked[:-1]).to_numpy(zero_copy_only=False)
    first = np.maximum.accumulate(np.where(starts, np.arange(len(ranked)), 0))
    part = np.empty(len(ranked), np.int64)
    part[order] = first // PART_ROWS
    return part


def _divide(tables: Iterator[pa.Table], part: npt.NDArray[np.int64], paths: Sequence[Path]) -> None:
    start = 0
    with ExitStack() as stack:
        writers: list[pa.ipc.RecordBatchStreamWriter] = []
        for table in tables:
            if not writers:
                schema = table.schema.append(pa.field(_ROW, pa.int64()))
                writers = [stack.enter_context(pa.ipc.new_stream(str(p), schema)) for p in paths]
            of_rows = part[start : start + len(table)]
            rows = pa.array(np.arange(start, start + len(table)))
            order = np.argsort(of_rows, kind="stable")
            sorted_rows = table.append_column(_ROW, rows).take(pa.array(order))
            for number in np.unique(of_rows).tolist():
                low, high = np.searchsorted(of_rows[order], [number, number + 1]).tolist()
                writers[number].write_table(sorted_rows.slice(low, high - low))
            start += len(table)


def _part(
    path: Path, settings: SourceConfig, root: Path | Bucket, splits: pa.Table, file: str
) -> RawStudies:
    found = RowRecords(settings, relative_to_root(root, settings))
    labels = []
    with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as stream:
        for batch in stream:
            table = pa.Table.from_batches([batch])
            labels.append(_labels(table))
            columns = {
                name: table[name].to_pylist()
                for name in table.column_names
                if name != _ROW and not name.startswith(_LABEL)
            }
            for row, number in enumerate(table[_ROW].to_pylist()):
                found.total = found.rows_of[_FILE.name] = number
                known = len(found.studies)
                found.add(_FILE, row, columns, None, {})
                if len(found.studies) > known:  # rows before it were refused
                    found.rows.first[next(reversed(found.studies))] = number
    named: dict[str, set[str]] = {}
    patients = {*found.splits, *(study.subject_id for study in found.studies.values())}
    own = splits.filter(pc.is_in(splits["subject"], pa.array(list(patients), pa.string())))
    for pair in own.to_pylist():
        named.setdefault(pair["subject"], set()).add(pair["split"])
    read = None
    if labels and labels[0].num_columns:
        rows = read_row_labels(pa.concat_tables(labels), file, settings, found.counts)
        read = label_table(found.study_of_row, rows, settings.findings)
    return RawStudies(
        root,
        studies=list(found.studies.values()),
        has_images=False,
        splits=named,
        labels=read,
        rejects=found.rejects,
        rows=found.rows,
        counts=dict(found.counts),
        by_patient=not settings.is_anonymous,
    )
