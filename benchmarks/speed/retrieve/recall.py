"""How much of an exhaustive search's answer the candidates hold."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from medclip_dcl.models.similarity import image_sentence_scores
from medclip_dcl.retrieval.embeddings import Floats, InMemoryIndex
from medclip_dcl.retrieval.search import Query, RetrievalIndex

CURVE = (10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000)
K_HITS = 10

_IMAGES_AT_ONCE = 256


@dataclass(frozen=True)
class Curve:
    """Recall@10 by number of candidates."""

    queries: list[Query]
    """What was asked, without a number of candidates."""
    best: npt.NDArray[np.int64]
    """(queries, 10) rows of the exhaustive search's hits."""
    recall: dict[int, float]
    """Candidates -> mean share of `best` among them."""

    def least(self, bar: float) -> int:
        """Give the least number of candidates that reaches a bar; the largest where none does."""
        return next((k for k in self.recall if self.recall[k] >= bar), max(self.recall))

    def found(self, index: RetrievalIndex, candidates: int) -> float:
        """Measure recall@10 of the index itself, its whole road from query to hits."""
        narrow = with_candidates(index, candidates)
        column = "image_id" if self.queries[0].target == "image" else "text_key"
        table = index.studies.images if column == "image_id" else index.studies.texts
        ids = table.column(column).to_pylist()
        shares = [
            len({hit.id for hit in narrow.search(query)} & {ids[row] for row in best}) / K_HITS
            for query, best in zip(self.queries, self.best, strict=True)
        ]
        return float(np.mean(shares))


def image_curve(index: RetrievalIndex, sentences: Tensor) -> Curve:
    """Ask for images by sentences, unit vectors (queries, dim), every image scored."""
    exact = _exact(index, sentences)
    near = index.sketch.of_vectors(sentences.numpy()) @ _in_memory(index, "image_sketches").T
    queries = [Query("image", K_HITS, vector=vector) for vector in sentences]
    return _curve(queries, exact, near)


def text_curve(index: RetrievalIndex, regions: Tensor) -> Curve:
    """Ask for sentences by images, unit vectors (queries, rows, columns, dim), every one scored."""
    sentences = torch.from_numpy(index.sentences.whole())
    exact = image_sentence_scores(regions.flatten(1, 2), sentences, index.similarity).T.numpy()
    asked = index.sketch.of_images(regions.flatten(1, 2), index.similarity)
    near = asked @ _in_memory(index, "text_sketches").T
    queries = [Query("text", K_HITS, regions=item) for item in regions]
    return _curve(queries, exact, near)


def with_candidates(index: RetrievalIndex, candidates: int) -> RetrievalIndex:
    """Give the same index with another number of candidates."""
    settings = index.settings.model_copy(update={"candidates": candidates})
    return RetrievalIndex(**{**vars(index), "settings": settings})


def _in_memory(index: RetrievalIndex, name: str) -> Floats:
    nearest = index.near[name]
    assert isinstance(nearest, InMemoryIndex)
    return nearest.vectors.whole()


def _exact(index: RetrievalIndex, sentences: Tensor) -> Floats:
    """Score every image, (sentences, images)."""
    parts = []
    for first in range(0, len(index.regions), _IMAGES_AT_ONCE):
        rows = np.arange(first, min(first + _IMAGES_AT_ONCE, len(index.regions)))
        regions = torch.from_numpy(index.regions.gather(rows)).float().flatten(1, 2)
        parts.append(image_sentence_scores(regions, sentences, index.similarity))
    scores: Floats = torch.cat(parts, dim=1).numpy()
    return scores


def _curve(
    queries: list[Query], exact: npt.NDArray[np.float32], near: npt.NDArray[np.float32]
) -> Curve:
    best = np.argsort(-exact, axis=1, kind="stable")[:, :K_HITS]
    order = np.argsort(-near, axis=1, kind="stable")
    index = np.empty_like(order)
    np.put_along_axis(index, order, np.arange(near.shape[1])[None], axis=1)
    ranks = np.take_along_axis(index, best, axis=1)
    widths = [k for k in CURVE if k < near.shape[1]]
    return Curve(queries, best, {k: float((ranks < k).mean()) for k in widths})
