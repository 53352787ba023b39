"""Retrieval index: vectors of films and sentences, and the tables that say whose they are.

Rows of `films.parquet` and `texts.parquet` number the vectors, which lie in shards of
equal length (the last may be shorter):

    regions-00000.npy    float16 (films, rows, columns, dim), unit region vectors
    pooled-00000.npy     float32 (films, dim), unit mean of a film's regions
    texts-00000.npy      float32 (texts, dim), unit sentence vectors
    sketch.npy           float32, how candidates are found: `medclip_dcl.index.sketch`
    film_sketches-00000.npy, text_sketches-00000.npy  float32 (films or texts, width)
    pictures-00000.arrow thumbnails, where the index was built with pictures
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from medclip_dcl.artifacts.files import write_bytes
from medclip_dcl.artifacts.frame import Kind
from medclip_dcl.artifacts.tables import Column, TableFormat
from medclip_dcl.errors import ArtifactCorrupt

KIND = Kind("index", 3, "build_index")

FILMS = TableFormat(
    "films.parquet",
    (
        Column("image_id", pa.string(), "id of the film"),
        Column("study_id", pa.string(), "id of its study"),
        Column("subject_id", pa.string(), "id of the patient"),
        Column("split", pa.string(), "train, validate or test"),
        Column("view", pa.string(), "view position; empty where the source has none"),
        Column(
            "findings",
            pa.list_(pa.string()),
            "what the report asserts, `No Finding` where it calls the film normal; without a "
            "report, the labels that are 1",
        ),
        Column("height_px", pa.int32(), "height of the original film, pixels"),
        Column("width_px", pa.int32(), "width of the original film, pixels"),
    ),
)
"""One row per indexed film, in order of image_id."""

TEXTS = TableFormat(
    "texts.parquet",
    (
        Column("text_key", pa.string(), "`text_key` of the sentence"),
        Column("text", pa.string(), "the sentence"),
        Column("studies", pa.int32(), "number of indexed studies that say it"),
    ),
)
"""One row per distinct sentence of the indexed studies, in order of text_key."""

SAYINGS = TableFormat(
    "sayings.parquet",
    (
        Column("study_id", pa.string(), "id of the study"),
        Column("text", pa.int32(), "row of the sentence in texts.parquet"),
    ),
)
"""Who says what: one row per study and sentence, in the report's order."""

PICTURES = TableFormat(
    "pictures-*.arrow",
    (Column("picture", pa.binary(), "the film as a grey JPEG in its own proportions"),),
)
"""Thumbnails, an uncompressed Arrow IPC file per shard, read by memory map."""


def shard_name(what: str, shard: int, suffix: str = "npy") -> str:
    """Name a shard's file.

    Args:
        what: regions, pooled, texts, film_sketches, text_sketches or pictures.
        shard: number of the shard, from 0.
        suffix: suffix of the file.

    Returns:
        The name, relative to the artifact's folder.
    """
    return f"{what}-{shard:05d}.{suffix}"


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an array as a .npy file, whole or not at all.

    Args:
        path: file to write.
        array: numbers; no objects.
    """
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.ascontiguousarray(array), allow_pickle=False)
    write_bytes(path, stream.getvalue())


def map_array(path: Path, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Map a .npy file into memory; what is written to the array never reaches the file.

    Args:
        path: file that `write_array` wrote.
        dtype: the type that its numbers must have.

    Returns:
        The array; its pages are read when they are touched.

    Raises:
        ArtifactCorrupt: the file is no such array.
    """
    try:
        array = np.lib.format.open_memmap(path, mode="c")  # torch takes no array it may not write
    except (OSError, ValueError) as error:
        raise ArtifactCorrupt(f"array {path} cannot be read; rerun {KIND.job}") from error
    if array.dtype != np.dtype(dtype):
        raise ArtifactCorrupt(f"array {path} is not of type {np.dtype(dtype)}; rerun {KIND.job}")
    return array


def write_pictures(path: Path, pictures: list[bytes]) -> None:
    """Write a shard's thumbnails.

    Args:
        path: file to write.
        pictures: one encoded picture per film, in order.
    """
    table = pa.Table.from_pydict({"picture": pictures}, schema=PICTURES.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=max(1, len(pictures)))
    write_bytes(path, sink.getvalue().to_pybytes())


def map_pictures(path: Path) -> pa.ChunkedArray:
    """Map a shard's thumbnails into memory.

    Args:
        path: file that `write_pictures` wrote.

    Returns:
        One binary value per film.

    Raises:
        ArtifactCorrupt: the file is no such shard.
    """
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (OSError, pa.ArrowException) as error:
        raise ArtifactCorrupt(f"pictures {path} cannot be read; rerun {KIND.job}") from error
    if table.schema != PICTURES.schema:
        raise ArtifactCorrupt(f"pictures {path} have other columns; rerun {KIND.job}")
    return table.column("picture")
