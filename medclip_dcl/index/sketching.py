"""Region and sentence vectors of a draft -> their sketches; all that candidates are found by."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from medclip_dcl.artifacts.embeddings import shard_name, write_array
from medclip_dcl.config.evaluation import IndexConfig
from medclip_dcl.config.model import SimilarityConfig
from medclip_dcl.index.nearest import Floats, Rows
from medclip_dcl.index.shards import Shards, open_shards
from medclip_dcl.index.sketch import FILE, Sketch, fit_sketch, score_at
from medclip_dcl.progress import Progress

_FILMS = 4096
_FILMS_WITH_BOXES = 1024
_FILMS_AT_ONCE = 16  # their widened regions and scores stay in a core's cache


def write_sketches(
    directory: Path, counts: tuple[int, int], settings: IndexConfig, similarity: SimilarityConfig
) -> None:
    """Fit the sketch of an index and write those of all films and sentences.

    Args:
        directory: the draft's folder, with all regions and sentence vectors; sketches that
            exist are kept.
        counts: films and sentences.
        settings: the index's settings.
        similarity: the exact score.
    """
    locate, dim, shard_rows = directory.joinpath, similarity.dim, settings.shard_rows
    regions = open_shards(locate, "regions", counts[0], shard_rows, dim)
    texts = open_shards(locate, "texts", counts[1], shard_rows, dim)
    if not (directory / FILE).is_file():
        boxes = settings.anchors // 3
        said = texts.gather(said_anchors(counts[1], settings))
        drawn_on = regions.gather(spread(counts[0], _FILMS_WITH_BOXES)).astype(np.float32)
        anchors = np.concatenate([said, _boxes(drawn_on, boxes)])
        sample = regions.gather(spread(counts[0], _FILMS))
        scores = over_blocks(sample, lambda films: score_at(anchors, films, similarity))
        fit_sketch(anchors, scores).write(directory)
    sketch = Sketch.read(directory / FILE, dim)
    sketch_films = partial(sketch.of_films, similarity=similarity)
    with Progress("sketch films", counts[0], "film") as progress:
        for number, shard in enumerate(regions.arrays):
            path = directory / shard_name("film_sketches", number)
            if not path.is_file():
                write_array(path, over_blocks(shard, sketch_films))
            progress.advance(len(shard))
    for number, shard in enumerate(texts.arrays if counts[1] else ()):
        path = directory / shard_name("text_sketches", number)
        if not path.is_file():
            write_array(path, sketch.of_vectors(shard))


def open_vectors(
    locate: Callable[[str], Path], recipe: Mapping[str, Any], counts: tuple[int, int]
) -> dict[str, Shards]:
    """Map everything that candidates are found by.

    Args:
        locate: gives the path of a file of the index, or of its draft.
        recipe: recipe of the index.
        counts: films and sentences.

    Returns:
        pooled, texts, film_sketches and text_sketches.

    Raises:
        ArtifactCorrupt: shards are missing or damaged.
    """
    shard_rows = recipe["settings"]["index"]["shard_rows"]
    dim = recipe["settings"]["similarity"]["dim"]
    width = Sketch.read(locate(FILE), dim).basis.shape[1]
    films, texts = counts
    return {
        "pooled": open_shards(locate, "pooled", films, shard_rows, dim),
        "texts": open_shards(locate, "texts", texts, shard_rows, dim),
        "film_sketches": open_shards(locate, "film_sketches", films, shard_rows, width),
        "text_sketches": open_shards(locate, "text_sketches", texts, shard_rows, width),
    }


def over_blocks(films: npt.NDArray[np.float16], give: Callable[[torch.Tensor], Floats]) -> Floats:
    """Widen the regions of films block by block.

    Args:
        films: (films, rows, columns, dim).
        give: makes something of a block, float32 (films, regions, dim).

    Returns:
        What it gives of all blocks, one after the other.
    """
    parts = []
    for first in range(0, len(films), _FILMS_AT_ONCE):
        block = torch.from_numpy(np.array(films[first : first + _FILMS_AT_ONCE]))
        parts.append(give(block.float().flatten(1, 2)))
    return np.concatenate(parts)


def said_anchors(texts: int, settings: IndexConfig) -> Rows:
    """Choose the sentences that a sketch is fitted on.

    Args:
        texts: sentences of the index.
        settings: the index's settings.

    Returns:
        Their rows, ascending.
    """
    return spread(texts, settings.anchors - settings.anchors // 3)


def spread(rows: int, most: int) -> Rows:
    """Take rows at even distances.

    Args:
        rows: how many there are.
        most: how many are wanted at most.

    Returns:
        Their numbers, ascending.
    """
    return np.unique(np.linspace(0, rows - 1, min(rows, most)).astype(np.int64))


def _boxes(regions: Floats, count: int) -> Floats:
    """Give unit vectors of boxes drawn on films: what a box of a film asks with."""
    draw = np.random.default_rng(0)
    films, height, width, dim = regions.shape
    found = np.empty((count, dim), dtype=np.float32)
    for number in range(count):
        tall, wide = draw.integers(1, height // 2 + 2), draw.integers(1, width // 2 + 2)
        top = draw.integers(0, max(1, height - tall + 1))
        left = draw.integers(0, max(1, width - wide + 1))
        inside = regions[number % films, top : top + tall, left : left + wide]
        found[number] = inside.mean(axis=(0, 1))
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    boxes: Floats = found[lengths[:, 0] > 0] / lengths[lengths > 0][:, None]
    return boxes
