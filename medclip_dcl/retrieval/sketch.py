"""A sketch of the scores of images, from which candidates come that are then scored exactly.

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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from scipy import linalg
from torch import Tensor

from medclip_dcl.core.tables import map_array, write_array
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.models.similarity import image_sentence_scores
from medclip_dcl.retrieval.embeddings import (
    Floats,
    Shards,
    open_shards,
)

SKETCH = "sketch.npy"
"""Landmarks, basis and lift, side by side: (landmarks, dim + 2 x width)."""

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

    def write(self, folder: Path) -> None:
        """Write it into the draft of an index."""
        whole = np.concatenate([self.landmarks, self.basis, self.lift], axis=1)
        write_array(folder / SKETCH, whole)

    @classmethod
    def read(cls, path: Path, dim: int) -> Self:
        """Read what `write` wrote of vectors that are `dim` wide."""
        whole = np.array(map_array(path, np.float32))
        width = (whole.shape[1] - dim) // 2
        landmarks, basis, lift = np.split(whole, [dim, dim + width], axis=1)
        return cls(*(np.ascontiguousarray(part) for part in (landmarks, basis, lift)))


@torch.no_grad()
def score_at(landmarks: Floats, regions: Tensor, similarity: SimilarityConfig) -> Floats:
    """Give the exact scores (images, landmarks) of unit regions (images, regions, dim)."""
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


def open_vectors(
    locate: Callable[[str], Path], fingerprint: Mapping[str, Any], counts: tuple[int, int]
) -> dict[str, Shards]:
    """Map what candidates are found by: pooled, texts, image_sketches and text_sketches.

    `locate` gives the path of a file of the index, or of its draft; `counts` are those of images
    and sentences. ArtifactCorrupt where shards are missing or damaged.
    """
    shard_rows = fingerprint["settings"]["index"]["shard_rows"]
    dim = fingerprint["settings"]["similarity"]["dim"]
    width = Sketch.read(locate(SKETCH), dim).basis.shape[1]
    images, texts = counts
    return {
        "pooled": open_shards(locate, "pooled", images, shard_rows, dim),
        "texts": open_shards(locate, "texts", texts, shard_rows, dim),
        "image_sketches": open_shards(locate, "image_sketches", images, shard_rows, width),
        "text_sketches": open_shards(locate, "text_sketches", texts, shard_rows, width),
    }
