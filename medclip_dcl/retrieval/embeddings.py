"""Retrieval index: vectors of images and sentences, and the tables that say whose they are.

Rows of `images.parquet` and `texts.parquet` number the vectors, which are in shards of
equal length (the last may be shorter):

    regions-00000.npy    float16 (images, rows, columns, dim), unit region vectors
    pooled-00000.npy     float32 (images, dim), unit mean of an image's regions
    texts-00000.npy      float32 (texts, dim), unit sentence vectors
    sketch.npy           float32, how candidates are found: `medclip_dcl.retrieval.index`
    image_sketches-00000.npy, text_sketches-00000.npy  float32 (images or texts, width)
    pictures-00000.arrow thumbnails, where the index was built with pictures

Candidates come from a sketch of the scores, and are then scored exactly.
The score of an image is a curved function of the sentence vector: of a trained model's ten best
images, the 200 images whose mean region is nearest hold but half. Here the function itself is
sketched, so that one vector per image and one per sentence have a product that stands in for the
exact score. With landmarks a_1 .. a_m, sentences and boxes of the corpus, image i has the exact
scores f_i = (f(x_i, a_1), .., f(x_i, a_m)); their leading right singular vectors B over a sample
of images give every image the coordinates

    p_i = f_i B        and every sentence        q(y) = (k(y, a_1), .., k(y, a_m)) (K + c)^-1 B

so that <p_i, q(y)> is kernel ridge regression of f(x_i, y) from the landmarks to y, kept to the
directions in which images differ. Candidates alone come from it: they are scored exactly.

Source: ours; kernel ridge regression with a low-rank output.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from scipy import linalg
from torch import Tensor

from medclip_dcl.core.artifact import ArtifactType
from medclip_dcl.core.errors import ArtifactCorrupt, CheckpointError
from medclip_dcl.core.files import denials_named, write_bytes
from medclip_dcl.core.tables import Column, TableFormat, map_array, write_array
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.models.similarity import image_sentence_scores

ARTIFACT = ArtifactType("index", 5, "build_index")

IMAGES = TableFormat(  # one row per indexed image, in order of image_id
    "images.parquet",
    (
        Column("image_id", pa.string(), "id of the image"),
        Column("study_id", pa.string(), "id of its study"),
        Column("subject_id", pa.string(), "id of the patient"),
        Column("split", pa.string(), "train, validate or test"),
        Column("view", pa.string(), "view position; empty where the source has none"),
        Column(
            "findings",
            pa.list_(pa.string()),
            "what the report asserts, `No Finding` where it calls the image normal; without a "
            "report, the labels that are 1",
        ),
        Column("height_px", pa.int32(), "height of the original image, pixels"),
        Column("width_px", pa.int32(), "width of the original image, pixels"),
    ),
)

TEXTS = TableFormat(  # one row per distinct sentence of the indexed studies, in order of text_key
    "texts.parquet",
    (
        Column("text_key", pa.string(), "`text_key` of the sentence"),
        Column("text", pa.string(), "the sentence"),
        Column("studies", pa.int32(), "number of indexed studies that say it"),
    ),
)

OCCURRENCES = TableFormat(  # who says what: one row per study and sentence, in the report's order
    "occurrences.parquet",
    (
        Column("study_id", pa.string(), "id of the study"),
        Column("text", pa.int32(), "row of the sentence in texts.parquet"),
    ),
)

PICTURES = TableFormat(  # thumbnails, an uncompressed Arrow IPC file per shard, read by memory map
    "pictures-*.arrow",
    (Column("picture", pa.binary(), "the image as a grey JPEG in its own proportions"),),
)

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def shard_name(what: str, shard: int, suffix: str = "npy") -> str:
    """Name the file of shard number `shard`, from 0, of regions, pooled, texts, ..."""
    return f"{what}-{shard:05d}.{suffix}"


def write_pictures(path: Path, pictures: list[bytes]) -> None:
    """Write a shard's thumbnails, one encoded picture per image, in order."""
    table = pa.Table.from_pydict({"picture": pictures}, schema=PICTURES.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=max(1, len(pictures)))
    write_bytes(path, sink.getvalue().to_pybytes())


def map_pictures(path: Path) -> pa.ChunkedArray:
    """Map a shard's thumbnails into memory: one binary value per image."""
    try:
        with denials_named(path):
            table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (OSError, pa.ArrowException) as error:
        raise ArtifactCorrupt(f"pictures {path} cannot be read; rerun {ARTIFACT.job}") from error
    if table.schema != PICTURES.schema:
        raise ArtifactCorrupt(f"pictures {path} have other columns; rerun {ARTIFACT.job}")
    return table.column("picture")


@dataclass(frozen=True)
class Shards:
    """Rows of one array."""

    arrays: Sequence[npt.NDArray[Any]]
    shard_rows: int
    """Rows of each shard but the last."""

    def __len__(self) -> int:
        return sum(map(len, self.arrays))

    def gather(self, rows: Rows) -> npt.NDArray[Any]:
        """Read rows in the order of `rows`, as they are stored."""
        first = self.arrays[0]
        gathered = np.empty((len(rows), *first.shape[1:]), dtype=first.dtype)
        for position, row in enumerate(rows.tolist()):
            shard, offset = divmod(row, self.shard_rows)
            gathered[position] = self.arrays[shard][offset]
        return gathered

    def whole(self) -> npt.NDArray[Any]:
        """Read all rows into one array in memory."""
        return np.concatenate(self.arrays)


class Nearest(Protocol):
    """Search for the nearest rows: by this process, or an engine that holds the same vectors."""

    def rows(self, direction: Floats, allowed: Mask | None, count: int) -> Rows:
        """Find at most `count` rows, ascending, with the largest inner products.

        `direction`: (dim,); `allowed`: (rows,), which may be found; None: all.
        """


class InMemoryIndex:
    """All vectors in memory: one matrix product, then a selection."""

    def __init__(self, vectors: Shards) -> None:
        self._vectors = vectors.whole()

    def rows(self, direction: Floats, allowed: Mask | None, count: int) -> Rows:
        """Find the rows as `Nearest.rows` says; of equal ones the lowest numbers."""
        products = self._vectors @ direction
        if allowed is None:
            return highest(products, count)
        indices = np.flatnonzero(allowed)
        rows: Rows = indices[highest(products[indices], count)]
        return rows


def highest(scores: Floats, count: int) -> Rows:
    """Find the indices, ascending, of the `count` highest scores; of equal ones the first."""
    if count >= len(scores):
        return np.arange(len(scores))
    rest = len(scores) - count
    least = np.partition(scores, rest)[rest]
    above = np.flatnonzero(scores > least)
    level = np.flatnonzero(scores == least)[: count - len(above)]
    return np.sort(np.concatenate([above, level]))


def pool(regions: Floats) -> Floats:
    """Return the unit direction (images, dim) of the mean region of (images, rows, columns, dim).

    CheckpointError where a vector is not finite, or the regions of an image cancel out.
    """
    means = regions.mean(axis=(1, 2), dtype=np.float32)
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    if not np.isfinite(regions).all() or not (lengths > 0).all():
        raise CheckpointError("the model gave a vector without direction; train it again")
    return np.asarray(means / lengths, dtype=np.float32)


SKETCH = "sketch.npy"  # landmarks, basis and lift, side by side: (landmarks, dim + 2 x width)

_WIDTH = 256  # coordinates of a sketch, at most
_REACH = 0.3  # of the kernel, in cosine: landmarks further apart say little about each other
_RIDGE = 1e-2  # c; keeps near-equal landmarks from large weights of opposite signs
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Sketch:
    """Map from images and sentences to short vectors whose product stands in for the score."""

    landmarks: Floats
    """(landmarks, dim), unit vectors."""
    basis: Floats
    """(landmarks, width), takes an image's exact scores to its sketch."""
    lift: Floats
    """(landmarks, width), takes a vector's kernel with the landmarks to its sketch."""

    def of_images(self, regions: Tensor, similarity: SimilarityConfig) -> Floats:
        """Sketch images, (images, width), from unit vectors (images, regions, dim)."""
        sketched: Floats = score_at(self.landmarks, regions, similarity) @ self.basis
        return sketched

    def of_vectors(self, vectors: Floats) -> Floats:
        """Sketch sentences or boxes, (vectors, width), from unit vectors (vectors, dim)."""
        parts = [
            _kernel(vectors[first : first + _ROWS_AT_ONCE], self.landmarks) @ self.lift
            for first in range(0, len(vectors), _ROWS_AT_ONCE)
        ]
        return np.concatenate([*parts, np.empty((0, self.lift.shape[1]), dtype=np.float32)])

    def write(self, path: Path) -> None:
        """Write it as one array."""
        write_array(path, np.concatenate([self.landmarks, self.basis, self.lift], axis=1))

    @classmethod
    def read(cls, path: Path, dim: int) -> Self:
        """Read what `write` wrote of vectors that are `dim` wide."""
        whole = np.array(map_array(path, np.float32))
        width = (whole.shape[1] - dim) // 2
        landmarks, basis, lift = np.split(whole, [dim, dim + width], axis=1)
        return cls(*(np.ascontiguousarray(part) for part in (landmarks, basis, lift)))


@torch.no_grad()
def score_at(landmarks: Floats, regions: Tensor, similarity: SimilarityConfig) -> Floats:
    """Return the exact scores (images, landmarks) of unit regions (images, regions, dim)."""
    scores: Floats = image_sentence_scores(
        regions, torch.from_numpy(landmarks), similarity
    ).T.numpy()
    return scores


def fit_sketch(landmarks: Floats, scores: Floats) -> Sketch:
    """Fit a sketch to the scores (images, landmarks) of a sample of images, from `score_at`.

    `landmarks`: unit vectors (landmarks, dim) like those that will be asked with.
    """
    # f ~ f B B^T is the best approximation of rank 256 (Eckart and Young 1936): no other basis
    # of that width keeps more of the scores at the landmarks. In float64: K is nearly singular.
    # Its eigenvectors alone that are kept: a whole decomposition takes four times as long.
    exact = scores.astype(np.float64)
    width, count = min(_WIDTH, *exact.shape), exact.shape[1]
    _, basis = linalg.eigh(exact.T @ exact, subset_by_index=[count - width, count - 1])
    kernel = _kernel(landmarks, landmarks).astype(np.float64)
    lift = np.linalg.solve(kernel + _RIDGE * np.eye(len(landmarks)), basis)
    return Sketch(landmarks, basis.astype(np.float32), lift.astype(np.float32))


def _kernel(vectors: Floats, landmarks: Floats) -> Floats:
    # exp((cos - 1) / reach): of unit vectors this is the Gaussian kernel, |x - y|^2 = 2 - 2 cos
    cosines: Floats = vectors @ landmarks.T
    kernel: Floats = np.exp((cosines - 1) / np.float32(_REACH))
    return kernel


@dataclass(frozen=True)
class Layout:
    """How the vectors of an index, or of its draft, are laid out in files."""

    locate: Callable[[str], Path]
    """Gives the path of a file."""
    images: int
    texts: int
    """Sentences."""
    shard_rows: int
    """Rows of each shard but the last."""
    dim: int
    """Numbers of a vector."""

    @classmethod
    def of(
        cls,
        locate: Callable[[str], Path],
        fingerprint: Mapping[str, Any],
        counts: Mapping[str, Any],
    ) -> Self:
        """Read it off an index's fingerprint, and its summary, which counts images and texts."""
        settings = fingerprint["settings"]
        sizes = settings["index"]["shard_rows"], settings["similarity"]["dim"]
        return cls(locate, counts["images"], counts["texts"], *sizes)

    @cached_property
    def sketch(self) -> Sketch:
        """The sketch that candidates are found by."""
        return Sketch.read(self.locate(SKETCH), self.dim)

    def open(self, what: str) -> Shards:
        """Map the shards of regions, pooled, texts, image_sketches or text_sketches.

        Raises:
            ArtifactCorrupt: shards are missing, or hold vectors of another number or width.
        """
        dtype, axes = (np.float16, 4) if what == "regions" else (np.float32, 2)
        rows = self.texts if what.startswith("text") else self.images
        width = self.sketch.basis.shape[1] if what.endswith("sketches") else self.dim
        count = -(-rows // self.shard_rows)
        arrays = [map_array(self.locate(shard_name(what, shard)), dtype) for shard in range(count)]
        if any(array.ndim != axes or array.shape[-1] != width for array in arrays):
            raise ArtifactCorrupt(f"{what} of the index are not {width} wide; rebuild it")
        shards = Shards(arrays or [np.empty((0, width), dtype=dtype)], self.shard_rows)
        if any(len(array) != self.shard_rows for array in arrays[:-1]):
            raise ArtifactCorrupt(f"shards of {what} of the index vary in length; rebuild it")
        if len(shards) != rows:
            raise ArtifactCorrupt(
                f"{what} of the index number {len(shards)}, not {rows}; rebuild it"
            )
        return shards

    def searched(self) -> dict[str, Shards]:
        """Map what candidates are found by; raises as `open`."""
        names = ("pooled", "texts", "image_sketches", "text_sketches")
        return {name: self.open(name) for name in names}
