"""Vectors of an opened index: small ones in memory, regions by memory map."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from medclip_dcl.artifacts.embeddings import map_array, map_pictures, shard_name
from medclip_dcl.artifacts.frame import Artifact
from medclip_dcl.errors import ArtifactCorrupt


@dataclass(frozen=True)
class RegionShards:
    """Region vectors of all films, in shards of equal length."""

    shards: Sequence[npt.NDArray[np.float16]]
    shard_rows: int

    def gather(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Read the regions of some films.

        Args:
            rows: row numbers of the films.

        Returns:
            (films, rows x columns, dim), float32, in the order of `rows`.
        """
        height, width, dim = self.shards[0].shape[1:]
        found = np.empty((len(rows), height * width, dim), dtype=np.float16)
        for position, row in enumerate(rows):
            shard, place = divmod(int(row), self.shard_rows)
            found[position] = self.shards[shard][place].reshape(height * width, dim)
        return torch.from_numpy(found).float()  # torch widens several times as fast as numpy


def open_regions(artifact: Artifact, films: int, shard_rows: int) -> RegionShards:
    """Map the region shards of an index.

    Args:
        artifact: the index.
        films: number of films that it must hold.
        shard_rows: films in each shard but the last.

    Returns:
        The shards.

    Raises:
        ArtifactCorrupt: shards are missing, or hold another number of films.
    """
    arrays = [
        map_array(artifact.file(shard_name("regions", shard)), np.float16)
        for shard in range(-(-films // shard_rows))
    ]
    if sum(len(array) for array in arrays) != films or any(array.ndim != 4 for array in arrays):
        raise ArtifactCorrupt(f"index {artifact.path} holds other regions than films; rebuild it")
    return RegionShards(arrays, shard_rows)


def read_vectors(
    artifact: Artifact, what: str, rows: int, shard_rows: int, dim: int
) -> npt.NDArray[np.float32]:
    """Read the pooled vectors of all films, or the vectors of all sentences.

    Args:
        artifact: the index.
        what: pooled or texts.
        rows: number of vectors that it must hold.
        shard_rows: vectors in each shard but the last.
        dim: width of a vector.

    Returns:
        (rows, dim), in memory.

    Raises:
        ArtifactCorrupt: shards are missing, or hold vectors of another number or width.
    """
    arrays = [
        map_array(artifact.file(shard_name(what, shard)), np.float32)
        for shard in range(-(-rows // shard_rows))
    ]
    if any(array.ndim != 2 or array.shape[1] != dim for array in arrays):
        raise ArtifactCorrupt(f"index {artifact.path}: {what} are not {dim} wide; rebuild it")
    vectors = np.concatenate([*arrays, np.empty((0, dim), dtype=np.float32)])
    if len(vectors) != rows:
        raise ArtifactCorrupt(f"index {artifact.path}: {what} number {len(vectors)}, not {rows}")
    return vectors


def read_picture(artifact: Artifact, row: int, shard_rows: int) -> bytes:
    """Read the thumbnail of a film.

    Args:
        artifact: an index with pictures.
        row: row number of the film.
        shard_rows: films in each shard but the last.

    Returns:
        An encoded JPEG.
    """
    shard, place = divmod(row, shard_rows)
    pictures = map_pictures(artifact.file(shard_name("pictures", shard, "arrow")))
    data: bytes = pictures[place].as_py()
    return data
