"""Arrays of an opened index, by memory map: shards of equal length, the last may be shorter."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from medclip_dcl.artifacts.embeddings import map_array, map_pictures, shard_name
from medclip_dcl.artifacts.frame import Artifact
from medclip_dcl.errors import ArtifactCorrupt

_REGIONS = "regions"


@dataclass(frozen=True)
class Shards:
    """Rows of one array.

    Attributes:
        arrays: the shards.
        shard_rows: rows of each but the last.
    """

    arrays: Sequence[npt.NDArray[Any]]
    shard_rows: int

    def __len__(self) -> int:
        return sum(map(len, self.arrays))

    def gather(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Read some rows.

        Args:
            rows: their numbers.

        Returns:
            The rows in the order of their numbers, as they are stored.
        """
        first = self.arrays[0]
        found = np.empty((len(rows), *first.shape[1:]), dtype=first.dtype)
        for position, row in enumerate(rows.tolist()):
            shard, place = divmod(row, self.shard_rows)
            found[position] = self.arrays[shard][place]
        return found

    def widen(self, rows: npt.NDArray[np.int64], found: torch.Tensor) -> torch.Tensor:
        """Read some rows at full precision.

        Args:
            rows: their numbers.
            found: float32 tensor of as many rows at least; receives them.

        Returns:
            The part of `found` that was filled, in the order of the numbers.
        """
        for position, row in enumerate(rows.tolist()):
            shard, place = divmod(row, self.shard_rows)
            found[position].copy_(self._tensors[shard][place])
        return found[: len(rows)]

    def whole(self) -> npt.NDArray[Any]:
        """Read all rows.

        Returns:
            One array, in memory.
        """
        return np.concatenate(self.arrays)

    @cached_property
    def _tensors(self) -> list[torch.Tensor]:
        return [torch.from_numpy(array) for array in self.arrays]


def open_shards(
    locate: Callable[[str], Path], what: str, rows: int, shard_rows: int, dim: int
) -> Shards:
    """Map the shards of an index.

    Args:
        locate: gives the path of a file of the index, or of its draft.
        what: regions, pooled, texts, film_sketches or text_sketches.
        rows: number of rows that they must hold.
        shard_rows: rows in each shard but the last.
        dim: width of a vector.

    Returns:
        The shards; one without rows where there are none.

    Raises:
        ArtifactCorrupt: shards are missing, or hold vectors of another number or width.
    """
    dtype, axes = (np.float16, 4) if what == _REGIONS else (np.float32, 2)
    arrays = [  # as plain arrays, whose rows are read faster one by one than a memmap's
        np.asarray(map_array(locate(shard_name(what, shard)), dtype))
        for shard in range(-(-rows // shard_rows))
    ]
    if any(array.ndim != axes or array.shape[-1] != dim for array in arrays):
        raise ArtifactCorrupt(f"{what} of the index are not {dim} wide; rebuild it")
    shards = Shards(arrays or [np.empty((0, dim), dtype=dtype)], shard_rows)
    if [len(array) for array in arrays[:-1]] != [shard_rows] * (len(arrays) - 1):
        raise ArtifactCorrupt(f"shards of {what} of the index vary in length; rebuild it")
    if len(shards) != rows:
        raise ArtifactCorrupt(f"{what} of the index number {len(shards)}, not {rows}; rebuild it")
    return shards


@dataclass(frozen=True)
class Pictures:
    """Thumbnails of all films, mapped when the index was opened."""

    shards: Sequence[pa.ChunkedArray]
    shard_rows: int

    def picture(self, row: int) -> bytes:
        """Give the thumbnail of a film.

        Args:
            row: row number of the film.

        Returns:
            An encoded JPEG.
        """
        shard, place = divmod(row, self.shard_rows)
        data: bytes = self.shards[shard][place].as_py()
        return data


def open_pictures(artifact: Artifact, films: int, shard_rows: int) -> Pictures:
    """Map the thumbnails of an index that was built with pictures.

    Args:
        artifact: the index.
        films: number of films.
        shard_rows: films in each shard but the last.

    Returns:
        The thumbnails.

    Raises:
        ArtifactCorrupt: a shard is missing or damaged, or they hold another number of pictures.
    """
    names = [shard_name("pictures", shard, "arrow") for shard in range(-(-films // shard_rows))]
    shards = [map_pictures(artifact.file(name)) for name in names]
    if sum(map(len, shards)) != films:
        raise ArtifactCorrupt(f"index {artifact.path} holds other pictures than films; rebuild it")
    return Pictures(shards, shard_rows)
