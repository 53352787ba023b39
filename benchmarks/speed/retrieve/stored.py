"""Recall of an index whose region vectors take fewer bytes than float16."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.speed.retrieve.recall import K_HITS
from medclip_dcl.models.similarity import image_sentence_scores
from medclip_dcl.retrieval.embeddings import Floats, InMemoryIndex, highest
from medclip_dcl.retrieval.search import RetrievalIndex

_IMAGES_AT_ONCE = 256
_SAMPLE = 512  # images that the directions are found on


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
    scores: dict[str, list[Tensor]] = {name: [] for name in ways}
    for first in range(0, len(index.regions), _IMAGES_AT_ONCE):
        rows = np.arange(first, min(first + _IMAGES_AT_ONCE, len(index.regions)))
        regions = _regions(index, rows)
        for name, (_, store) in ways.items():
            scores[name].append(image_sentence_scores(store(regions), sentences, index.similarity))
    exact = torch.cat(scores["float16"], 1).numpy()
    nearest = index.near["image_sketches"]
    assert isinstance(nearest, InMemoryIndex)
    asked = index.sketch.of_vectors(sentences.numpy())
    found = [nearest.rows(item, None, candidates) for item in asked]
    return {
        name: (size, _recall(exact, torch.cat(scores[name], 1).numpy(), found))
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
