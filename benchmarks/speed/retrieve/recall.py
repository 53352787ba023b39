"""How much of an exhaustive search's answer the candidates hold, and regions in fewer bytes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from medclip_dcl.models.similarity import image_sentence_scores
from medclip_dcl.retrieval.embeddings import Floats, InMemoryIndex, highest
from medclip_dcl.retrieval.search import Query, RetrievalIndex

CURVE = (10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000)
K_HITS = 10

_IMAGES_AT_ONCE = 256
_SAMPLE = 512  # images that the leading directions are found on


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


def _exact(
    index: RetrievalIndex, sentences: Tensor, stored: Callable[[Tensor], Tensor] = lambda x: x
) -> Floats:
    """Score every image, (sentences, images), by its regions as they are after storing."""
    parts = []
    for first in range(0, len(index.regions), _IMAGES_AT_ONCE):
        rows = np.arange(first, min(first + _IMAGES_AT_ONCE, len(index.regions)))
        regions = stored(_regions(index, rows))
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


def recall_by_storage(
    index: RetrievalIndex, sentences: Tensor, candidates: int
) -> dict[str, tuple[float, float]]:
    """Re-rank the candidates of each sentence by regions that are stored in another way.

    Gives way -> bytes of a region, and recall@10 against the exhaustive search in float16.
    """
    every = max(1, len(index.regions) // _SAMPLE)
    sample = _regions(index, np.arange(0, len(index.regions), every)).flatten(0, 1)
    dim = sample.shape[1]
    _, directions = torch.linalg.eigh((sample.T @ sample).double())
    ways: dict[str, tuple[float, Callable[[Tensor], Tensor]]] = {
        "float16": (2 * dim, lambda x: x),
        "int8, a scale each": (dim + 2, lambda x: _rounded(x, 8)),
        "int8, a scale each, made unit": (
            dim + 2,
            lambda x: functional.normalize(_rounded(x, 8), dim=-1),
        ),
        "int8 about the image's mean": (
            dim + 2,
            lambda x: x.mean(1, keepdim=True) + _rounded(x - x.mean(1, keepdim=True), 8),
        ),
        "10 bits, a scale each": (dim * 10 / 8 + 2, lambda x: _rounded(x, 10)),
        "12 bits, a scale each": (dim * 12 / 8 + 2, lambda x: _rounded(x, 12)),
    }
    for kept in (dim // 4, dim // 2, dim * 3 // 4):
        leading = directions[:, -kept:].float()
        name = f"float16, {kept} leading directions"
        ways[name] = (2 * kept, lambda x, r=leading: (x @ r).half().float() @ r.T)
    scores = {name: _exact(index, sentences, store) for name, (_, store) in ways.items()}
    nearest = index.near["image_sketches"]
    asked = index.sketch.of_vectors(sentences.numpy())
    found = [nearest.rows(item, None, candidates) for item in asked]
    return {
        name: (size, _recall(scores["float16"], scores[name], found))
        for name, (size, _) in ways.items()
    }


def _regions(index: RetrievalIndex, rows: np.ndarray) -> Tensor:
    return torch.from_numpy(index.regions.gather(rows)).float().flatten(1, 2)


def _rounded(x: Tensor, bits: int) -> Tensor:
    most = 2 ** (bits - 1) - 1
    scale = (x.abs().amax(-1, keepdim=True) / most).half().float().clamp(min=1e-7)
    return (x / scale).round().clamp(-most, most) * scale


def _recall(exact: Floats, rough: Floats, found: list[np.ndarray]) -> float:
    shares = []
    for scores, near, rows in zip(exact, rough, found, strict=True):
        kept = rows[highest(near[rows], K_HITS)]
        shares.append(np.isin(highest(scores, K_HITS), kept).mean())
    return float(np.mean(shares))
