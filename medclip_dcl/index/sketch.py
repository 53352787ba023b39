"""One vector per film and one per sentence whose product stands in for the exact score.

The score of a film is a curved function of the sentence vector: of a trained model's ten best
films, the 200 films whose mean region is nearest hold but half. Here the function itself is
sketched. With anchors a_1 .. a_m, sentences and boxes of the corpus, film i has the exact scores
f_i = (f(x_i, a_1), .., f(x_i, a_m)); their leading right singular vectors B over a sample of
films give every film the coordinates

    p_i = f_i B        and every sentence        q(y) = (k(y, a_1), .., k(y, a_m)) (K + c)^-1 B

so that <p_i, q(y)> is kernel ridge regression of f(x_i, y) from the anchors to y, kept to the
directions in which films differ. Candidates alone come from it: they are scored exactly.

Source: ours; kernel ridge regression with a low-rank output.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from medclip_dcl.artifacts.embeddings import map_array, write_array
from medclip_dcl.config.model import SimilarityConfig
from medclip_dcl.index.nearest import Floats
from medclip_dcl.model.similarity import image_sentence_scores

FILE = "sketch.npy"
"""Anchors, basis and lift, side by side: (anchors, dim + 2 x width)."""

_WIDTH = 256
_REACH = 0.3
_RIDGE = 1e-2
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Sketch:
    """How films and sentences are sketched.

    Attributes:
        anchors: (anchors, dim), unit vectors.
        basis: (anchors, width), takes a film's exact scores to its sketch.
        lift: (anchors, width), takes a vector's kernel with the anchors to its sketch.
    """

    anchors: Floats
    basis: Floats
    lift: Floats

    def of_films(self, regions: torch.Tensor, similarity: SimilarityConfig) -> Floats:
        """Sketch films.

        Args:
            regions: unit vectors (films, regions, dim).
            similarity: the exact score.

        Returns:
            (films, width).
        """
        sketched: Floats = score_at(self.anchors, regions, similarity) @ self.basis
        return sketched

    def of_vectors(self, vectors: Floats) -> Floats:
        """Sketch sentences, or boxes.

        Args:
            vectors: unit vectors (vectors, dim).

        Returns:
            (vectors, width).
        """
        parts = [
            _kernel(vectors[first : first + _ROWS_AT_ONCE], self.anchors) @ self.lift
            for first in range(0, len(vectors), _ROWS_AT_ONCE)
        ]
        return np.concatenate([*parts, np.empty((0, self.lift.shape[1]), dtype=np.float32)])

    def write(self, folder: Path) -> None:
        """Write it into an index's draft.

        Args:
            folder: the draft's directory.
        """
        write_array(folder / FILE, np.concatenate([self.anchors, self.basis, self.lift], axis=1))

    @classmethod
    def read(cls, path: Path, dim: int) -> Self:
        """Read what `write` wrote.

        Args:
            path: the file.
            dim: width of the vectors.

        Returns:
            The sketch.

        Raises:
            ArtifactCorrupt: it cannot be read.
        """
        whole = np.array(map_array(path, np.float32))
        width = (whole.shape[1] - dim) // 2
        anchors, basis, lift = np.split(whole, [dim, dim + width], axis=1)
        return cls(*(np.ascontiguousarray(part) for part in (anchors, basis, lift)))


def score_at(anchors: Floats, regions: torch.Tensor, similarity: SimilarityConfig) -> Floats:
    """Score films at anchors.

    Args:
        anchors: unit vectors (anchors, dim).
        regions: unit vectors (films, regions, dim).
        similarity: the exact score.

    Returns:
        (films, anchors).
    """
    scores: Floats = image_sentence_scores(regions, torch.from_numpy(anchors), similarity).T.numpy()
    return scores


def fit_sketch(anchors: Floats, scores: Floats) -> Sketch:
    """Fit a sketch.

    Args:
        anchors: unit vectors (anchors, dim) like those that will be asked with.
        scores: (films, anchors), of a sample of films, from `score_at`.

    Returns:
        The sketch.
    """
    _, _, directions = np.linalg.svd(scores.astype(np.float64), full_matrices=False)
    basis = directions[:_WIDTH].T
    kernel = _kernel(anchors, anchors).astype(np.float64)
    lift = np.linalg.solve(kernel + _RIDGE * np.eye(len(anchors)), basis)
    return Sketch(anchors, basis.astype(np.float32), lift.astype(np.float32))


def _kernel(vectors: Floats, anchors: Floats) -> Floats:
    cosines: npt.NDArray[np.float32] = vectors @ anchors.T
    kernel: Floats = np.exp((cosines - 1) / np.float32(_REACH))
    return kernel
