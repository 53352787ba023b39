"""Prepared images: square 8-bit grey films in shards that are read by memory map."""

import json
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from medclip_dcl.artifacts import files
from medclip_dcl.artifacts.frame import Artifact, Kind
from medclip_dcl.artifacts.tables import Column
from medclip_dcl.errors import ArtifactCorrupt

KIND = Kind("prepared", 1, "prepare_images")

COLUMNS = (
    Column("image_id", pa.string(), "id of the film"),
    Column("pixels", pa.large_binary(), "size x size bytes, row by row; 0 black, 255 white"),
    Column("height_px", pa.int32(), "height of the original film, pixels"),
    Column("width_px", pa.int32(), "width of the original film, pixels"),
)
"""Columns of every shard, an uncompressed Arrow IPC file `shard-00000.arrow`.

The original is stretched onto the square, so x_prepared = x * size / width_px and
y_prepared = y * size / height_px, in pixels.
"""

SHARD = "shard-{:05d}.arrow"
"""Name of a shard by its place in the manifest."""

_BAND_PX = 4  # half of the lines that are compared before whole pictures are

_SCHEMA = pa.schema([(column.name, column.type) for column in COLUMNS])


def write_shard(
    folder: Path,
    number: int,
    image_ids: Sequence[str],
    pixels: npt.NDArray[np.uint8],
    sizes: npt.NDArray[np.int32],
    rejects: Sequence[tuple[str, str]],
) -> None:
    """Write one shard; it appears whole, its rejects with it, or not at all.

    Args:
        folder: folder of the artifact's draft.
        number: place of the shard.
        image_ids: ids of the films, n of them.
        pixels: uint8 (n, size, size).
        sizes: int32 (n, 2): height and width of the originals, pixels.
        rejects: id and reason code of every film of this shard that was refused.
    """
    count, size_px, _ = pixels.shape
    area = size_px * size_px
    offsets = pa.py_buffer(np.arange(0, (count + 1) * area, area, dtype=np.int64))
    data = pa.py_buffer(np.ascontiguousarray(pixels))
    columns = [
        pa.array(list(image_ids), pa.string()),
        pa.Array.from_buffers(pa.large_binary(), count, [None, offsets, data]),
        pa.array(sizes[:, 0], pa.int32()),
        pa.array(sizes[:, 1], pa.int32()),
    ]
    facts = {"size_px": str(size_px), "rejects": json.dumps(list(rejects))}
    schema = _SCHEMA.with_metadata(facts)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    files.write_bytes(folder / SHARD.format(number), sink.getvalue())


def read_shard_rejects(folder: Path, number: int) -> tuple[int, list[tuple[str, str]]]:
    """Read what a finished shard kept and refused.

    Args:
        folder: folder of the artifact or its draft.
        number: place of the shard.

    Returns:
        Number of films kept; id and reason code of those refused.

    Raises:
        ArtifactCorrupt: the shard cannot be read.
    """
    batch = _open_shard(folder / SHARD.format(number))
    rejects = json.loads(batch.schema.metadata[b"rejects"])
    return batch.num_rows, [(image_id, reason) for image_id, reason in rejects]


class PreparedImages:
    """The prepared films of an artifact, read by memory map.

    Args:
        artifact: an opened artifact of kind `prepared`.

    Raises:
        ArtifactCorrupt: a shard cannot be read, or shards differ in size.
    """

    def __init__(self, artifact: Artifact) -> None:
        self._batches = [
            _open_shard(artifact.path / name)
            for name in sorted(artifact.files)
            if name.endswith(".arrow")
        ]
        self.size_px = int(artifact.summary["size_px"])
        """Height and width of a film, pixels."""
        sizes = {int(batch.schema.metadata[b"size_px"]) for batch in self._batches}
        if sizes - {self.size_px}:
            raise ArtifactCorrupt(f"shards of {artifact.path} differ in size; rerun {KIND.job}")
        self._starts = [0]
        self._films: list[npt.NDArray[np.uint8]] = []
        for batch in self._batches:
            self._starts.append(self._starts[-1] + batch.num_rows)
            self._films.append(_films(batch, self.size_px))

    def __len__(self) -> int:
        return self._starts[-1]

    @cached_property
    def image_ids(self) -> list[str]:
        """Ids of the films, in the order of the rows."""
        return [image_id for batch in self._batches for image_id in batch.column(0).to_pylist()]

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Id of a film -> its row."""
        return {image_id: row for row, image_id in enumerate(self.image_ids)}

    @cached_property
    def _sizes(self) -> npt.NDArray[np.int32]:
        parts = [
            np.stack([batch.column(at).to_numpy() for at in (2, 3)], axis=1)
            for batch in self._batches
        ]
        return np.concatenate(parts) if parts else np.zeros((0, 2), dtype=np.int32)

    def pixels(self, row: int) -> npt.NDArray[np.uint8]:
        """Give one film without copying it.

        Args:
            row: its row, in [0, len).

        Returns:
            uint8 (size_px, size_px), read-only, 0 black.

        Raises:
            IndexError: there is no such row.
        """
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)} prepared films")
        shard = bisect_right(self._starts, row) - 1
        film: npt.NDArray[np.uint8] = self._films[shard][row - self._starts[shard]]
        return film

    def original_size(self, row: int) -> tuple[int, int]:
        """Give the size that a film had before it was stretched.

        Args:
            row: its row, in [0, len).

        Returns:
            Height and width, pixels.
        """
        height, width = self._sizes[row]
        return int(height), int(width)

    def find_repeats(self, rows: Iterable[int], among: Iterable[int]) -> dict[int, int]:
        """Find films whose picture another film has, pixel by pixel.

        Args:
            rows: the films in question.
            among: films that they are compared with; a film does not repeat itself.

        Returns:
            Row in question -> the first row among the others with the same pixels. Of most
            films a few lines in the middle are read and no more.
        """
        by_band: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            by_band[self._band(row)].append(row)
        found: dict[int, int] = {}
        for other in among:
            for row in by_band.get(self._band(other), ()):
                known = row in found or row == other
                if not known and np.array_equal(self.pixels(row), self.pixels(other)):
                    found[row] = other
        return found

    def _band(self, row: int) -> int:
        middle = self.size_px // 2
        return zlib.crc32(self.pixels(row)[middle - _BAND_PX : middle + _BAND_PX].data)


def _open_shard(path: Path) -> pa.RecordBatch:
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        batch = reader.get_batch(0)
    except (OSError, pa.ArrowException) as error:
        raise ArtifactCorrupt(f"shard {path} is missing or damaged; rerun {KIND.job}") from error
    if batch.schema.remove_metadata() != _SCHEMA:
        raise ArtifactCorrupt(f"shard {path} has other columns than it must; rerun {KIND.job}")
    return batch


def _films(batch: pa.RecordBatch, size_px: int) -> npt.NDArray[np.uint8]:
    data = batch.column(1).buffers()[2]
    films = np.frombuffer(data, dtype=np.uint8) if data else np.zeros(0, dtype=np.uint8)
    expected = batch.num_rows * size_px * size_px
    if films.size < expected:
        raise ArtifactCorrupt(f"a shard holds too few pixels; rerun {KIND.job}")
    return films[:expected].reshape(batch.num_rows, size_px, size_px)
