"""Columns of a table's file by dotted name, nested ones too; of images, where each one is.

Bytes of images are not read: of Parquet only the columns that say whether a row has any.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from medclip_dcl.data.row_images import (
    Bucket,
    is_list,
    open_arrow,
    row_name,
    split_column,
    take_field,
    within_lists,
)
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.data.table_files import no_column, read_any, read_table_parts, require_columns
from medclip_dcl.errors import StudyError

_ROWS = 20_000  # of columns without images that are in memory at a time
_BATCH = 64  # rows whose bytes are in memory at a time
_MAX_GROUP_BYTES = 1 << 30  # of images in a row group of Parquet, which is read as a whole
_BUFFER = {"buffer_size": 1 << 20, "pre_buffer": False}


def read_columns(
    path: Path, columns: Sequence[str], image: str, root: Path | Bucket, settings: SourceConfig
) -> pa.Table:
    """Read columns of a table's file, named as they are asked for.

    `image`: the column of images, or empty. Its values become strings, or lists of strings: a
    `row_images.row_name` where there are bytes, else the path, empty where there is none either.
    Of `datasets`' ClassLabels, names are given.

    Raises:
        StudyError: the file cannot be read, a column is missing, or a row group of Parquet is too
            large to be read as a whole.
    """
    try:
        return _read(path, columns, image, root, settings)
    except (pa.ArrowException, OSError) as error:
        raise StudyError(f"table {path} cannot be read ({type(error).__name__})") from error


def read_column_parts(
    path: Path, columns: Sequence[str], root: Path | Bucket, settings: SourceConfig
) -> Iterator[pa.Table]:
    """Read columns as `read_columns`, CSV and Parquet in parts, the first of them without rows."""
    suffix, wanted = path.suffix.lower(), list(dict.fromkeys(columns))
    try:
        if suffix == ".parquet" and path.is_file():
            with pq.ParquetFile(path, **_BUFFER) as file:
                heads = [head for head, _ in _split(file.schema_arrow.names, wanted, path)]
                light = [leaf for head in heads for leaf in _leaves(file, head, raw=False)]
                yield take_columns(file.schema_arrow.empty_table(), file.schema_arrow, wanted, path)
                for batch in file.iter_batches(_ROWS, columns=light, use_threads=False):
                    part = pa.Table.from_batches([batch])
                    yield take_columns(part, file.schema_arrow, wanted, path)
        elif suffix == ".arrow":
            yield read_columns(path, wanted, "", root, settings)
        else:
            for part in read_table_parts(path, settings.fallback_encoding):
                yield take_columns(part, part.schema, wanted, path)
    except (pa.ArrowException, OSError) as error:
        raise StudyError(f"table {path} cannot be read ({type(error).__name__})") from error


def _read(
    path: Path, columns: Sequence[str], image: str, root: Path | Bucket, settings: SourceConfig
) -> pa.Table:
    suffix, wanted = path.suffix.lower(), list(dict.fromkeys(columns))
    if suffix == ".parquet" and path.is_file():
        with pq.ParquetFile(path, **_BUFFER) as file:
            names = file.schema_arrow.names
            heads = [head for head, _ in _split(names, [*wanted, image], path)]
            light = [leaf for head in heads for leaf in _leaves(file, head, raw=False)]
            found = file.read(columns=light, use_threads=False)
            table = take_columns(found, file.schema_arrow, wanted, path)
            if not image:
                return table
            images = list(_parquet_images(file, path, image, root))
    else:
        if suffix == ".arrow":
            whole = open_arrow(path)
        else:
            whole = read_any(path, settings.fallback_encoding)
        whole.validate(full=suffix == ".arrow")
        table = take_columns(whole, whole.schema, wanted, path)
        if not image:
            return table
        ((head, fields),) = _split(whole.column_names, [image], path)
        images, row = [], 0
        for chunk in whole.column(head).chunks:
            images.append(_names(_field(chunk, fields, image, path), path, image, root, row))
            row += len(chunk)
    kind = images[0].type if images else pa.string()
    return _append(table, image, pa.chunked_array(images, kind))


def _append(table: pa.Table, name: str, column: pa.ChunkedArray) -> pa.Table:
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, column)
    return pa.table({name: column}) if not table.column_names else table.append_column(name, column)


def _split(names: Sequence[str], wanted: Sequence[str], path: Path) -> list[tuple[str, list[str]]]:
    found = {name: split_column(names, name) for name in wanted if name}
    if missing := [name for name, parts in found.items() if parts is None]:
        raise no_column(path.name, missing, list(names), wanted)
    require_columns(path.name, [parts[0] for parts in found.values() if parts], names)
    return [parts for parts in found.values() if parts]


def _field(array: pa.Array, fields: Sequence[str], column: str, path: Path) -> pa.Array:
    try:
        return take_field(array, fields)
    except KeyError:
        raise no_column(path.name, [column], []) from None


def take_images(table: pa.Table, image: str, path: Path) -> pa.Array:
    """Take the column of images of a table that is in memory, bytes included."""
    ((head, fields),) = _split(table.column_names, [image], path)
    return _field(pa.concat_arrays(table.column(head).chunks), fields, image, path)


def take_columns(table: pa.Table, schema: pa.Schema, wanted: Sequence[str], path: Path) -> pa.Table:
    """Take columns by dotted name, with the names of ClassLabels, which `schema` has."""
    features = _features(schema, path)
    _split(schema.names, wanted, path)  # all at once: a column that is there tells names from data
    columns = {}
    for column in wanted:
        ((head, fields),) = _split(schema.names, [column], path)
        if head not in table.column_names:  # bytes alone
            raise StudyError(f"column {column!r} of {path.name} holds bytes; map it to `image`")
        labels = _class_names(features, [head, *fields], path.name)
        chunks = []
        for chunk in table.column(head).chunks:
            values = _field(chunk, fields, column, path)
            chunks.append(_named(values, labels) if labels else values)
        empty = _field(pa.array([], table.schema.field(head).type), fields, column, path)
        kind = chunks[0].type if chunks else empty.type
        columns[column] = pa.chunked_array(chunks, kind)
    return pa.table(columns)


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


def _leaves(file: pq.ParquetFile, head: str, *, raw: bool) -> list[str]:
    # The primitive columns within a column; `raw`: those of bytes, else all others.
    leaves = [file.schema.column(index) for index in range(len(file.schema))]
    return [
        leaf.path
        for leaf in leaves
        if (leaf.path == head or leaf.path.startswith(f"{head}."))
        and (leaf.physical_type == "BYTE_ARRAY" and leaf.logical_type.type == "NONE") == raw
    ]


def _parquet_images(
    file: pq.ParquetFile, path: Path, image: str, root: Path | Bucket
) -> Iterator[pa.Array]:
    ((head, fields),) = _split(file.schema_arrow.names, [image], path)
    raw, texts = (_leaves(file, head, raw=kind) for kind in (True, False))
    index_of = {file.schema.column(index).path: index for index in range(len(file.schema))}
    row = 0
    for group in range(file.num_row_groups):
        facts = file.metadata.row_group(group)
        chunks = [facts.column(index_of[leaf]) for leaf in raw]
        if sum(chunk.total_uncompressed_size for chunk in chunks) > _MAX_GROUP_BYTES:
            raise StudyError(
                f"row group {group} of {path.name} holds more than 1 GiB of images; write it with "
                "fewer rows a group, or read it with source.kind huggingface and source.materialise"
            )
        nulls = [chunk.statistics.null_count if chunk.statistics else None for chunk in chunks]
        all_there = bool(raw and texts) and nulls == [0] * len(nulls)
        columns = texts if all_there else [*raw, *texts]
        for batch in file.iter_batches(_BATCH, [group], columns, use_threads=False):
            array = _field(batch.column(0), fields, image, path)
            yield _names(array, path, image, root, row, all_there=all_there)
            row += batch.num_rows


def _names(
    array: pa.Array,
    path: Path,
    image: str,
    root: Path | Bucket,
    row: int,
    *,
    all_there: bool = False,
) -> pa.Array:
    """Say where the images of some rows are; `row`: the first, `all_there`: none lacks bytes."""
    listed = is_list(array.type)
    lengths = np.ones(len(array), np.int64)
    if listed:
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    flat = pc.list_flatten(array) if listed else array
    rows = np.repeat(np.arange(row, row + len(array)), lengths).tolist()
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = (np.arange(len(flat)) - starts).tolist() if listed else [None] * len(flat)
    has_bytes, paths = _elements(flat, image, path)
    file = ""
    if all_there or any(has_bytes):
        if not isinstance(root, Path) or not path.resolve().is_relative_to(root.resolve()):
            raise StudyError(f"{path.name} holds images; put it under source.root, a folder")
        file = path.resolve().relative_to(root.resolve()).as_posix()
    names = pa.array(
        [
            row_name(file, image, at, k) if found or all_there else name or ""
            for at, k, found, name in zip(rows, places, has_bytes, paths, strict=True)
        ],
        pa.string(),
    )
    if not listed:
        return names
    return pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(lengths)), pa.int32()), names)


def _elements(flat: pa.Array, image: str, path: Path) -> tuple[list[bool], list[str | None]]:
    kind = flat.type
    if pa.types.is_struct(kind):
        fields = {field.name for field in kind}
        if fields and fields <= {"bytes", "path"}:
            blank = pa.nulls(len(flat))
            data, names = (
                pc.struct_field(flat, name) if name in fields else blank
                for name in ("bytes", "path")
            )
            return data.is_valid().to_pylist(), names.to_pylist()
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return flat.is_valid().to_pylist(), [None] * len(flat)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind):
        return [False] * len(flat), flat.to_pylist()
    raise StudyError(
        f"column {image!r} of {path.name} holds no images; give bytes, objects of `bytes` and "
        "`path`, paths, or lists of these"
    )
